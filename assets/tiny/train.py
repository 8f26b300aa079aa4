#!/usr/bin/env python3
"""Trains the tiny model directory that kvroute embeds (tests, demos, the mock engine).

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.2 && venv/bin/python train.py

Python 3.11, tokenizers 0.23.2. The text is generated below from sentences written for
this purpose, with a fixed seed, so the same versions give the same tokenizer.json.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

HERE = Path(__file__).resolve().parent
VOCABULARY = 2400
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.content is string %}
{{- message.content }}
{%- elif message.content %}
{%- for part in message.content %}
{{- part.text if part.type == 'text' else '<|' + part.type + '|>' }}
{%- endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<call>' + call.function.name + ' ' + call.function.arguments | tojson + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

SUBJECTS = """the router; a worker; the engine; an operator; the scheduler; a client; the library; this request;
the first message; every block; a long prompt; the old cache; a small tokenizer; the night train; my neighbour;
the baker; a careful reader; the captain; our teacher; the gardener; an honest answer; the winter storm;
the mountain village; a quiet river; the young doctor; the machine room; a graphics card; the network; her sister;
the committee; a broken window; the weather report; the assistant; the user; the system; a second opinion;
the morning light; an empty station; the new kitchen; their oldest friend""".replace("\n", " ").split("; ")

VERBS = """sends; holds; counts; removes; remembers; forgets; explains; repairs; measures; follows; describes;
answers; collects; compares; carries; returns; stores; opens; closes; writes; reads; finds; loses; keeps; breaks;
watches; accepts; refuses; prepares; delivers; replaces; understands; improves; publishes; receives; computes;
translates; summarises; generates; imagines""".replace("\n", " ").split("; ")

OBJECTS = """the answer; a prefix of the conversation; forty kilometres of copper wire; the shared memory; three warm loaves;
the next token; a list of names; the key and the value; an unfinished letter; the oldest event; a table of costs;
the whole history; one hundred requests per second; an apple and two pears; the missing page; a function that returns nothing;
the colour of the sky; a better question; the temperature of the oven; the weight of each device; a short story about the sea;
the number of free blocks; a map of the coast; the instructions; some good advice; the error message; the deadline;
an example in Python; a program written in Rust; the result of the experiment; every second sentence; the price of bread;
a photograph of the harbour; the balance between speed and care; a promise; the last word; a plan for the summer;
the difference between them; a glass of water; the length of the queue""".replace("\n", " ").split("; ")

ENDINGS = """before the rain begins; when nobody is waiting; because the queue is full; after a short pause; without a lock;
as soon as the stream is live; in less than a millisecond; although it was late; until the lease expires; for the third time;
if the connection is lost; while the others sleep; with great patience; at the end of the day; on a Tuesday in November;
between two stations; from the beginning; instead of guessing; in the same order; under heavy load; near the old bridge;
during the replay; so that everyone can see it; as if nothing had happened; inside a single block; over and over again;
step by step; in plain English; according to the manual; despite the noise""".replace("\n", " ").split("; ")

QUESTIONS = """What is the capital of that country?; How do I sort a list of numbers?; Can you explain how a cache works?;
Please write a short poem about autumn.; Which of these two plans is cheaper, and why?; Summarise the following text in one sentence.;
Translate this paragraph into French.; Why does the program stop after ten minutes?; Give me five ideas for dinner.;
You are a helpful assistant. Answer briefly and say when you are not sure.; Tell me what changed since yesterday.;
Is there a faster way to do this?; What would happen if the network failed?; Show your reasoning, then the result.;
Could you check my spelling?; Who wrote it, where, and when?; Let's think about it carefully.;
I don't know what you mean; it's not what we've asked for, and they're still here.""".replace("\n", " ").split("; ")

CODE = """fn main() {\n    let mut total = 0;\n    for item in &items {\n        total += item.len();\n    }\n    println!("{total}");\n}
def mean(values):\n    if not values:\n        return None\n    return sum(values) / len(values)
pub struct Block {\n    pub tokens: Vec<u32>,\n    pub hash: u64,\n}
impl Index {\n    pub fn insert(&mut self, key: u64) -> Option<u64> {\n        self.map.get(&key).copied()\n    }\n}
SELECT name, count(*) FROM workers WHERE state = 'live' GROUP BY name ORDER BY 2 DESC;
for (let i = 0; i < rows.length; i++) {\n  const row = rows[i];\n  console.log(row.id, row.name);\n}
# Notes\n\n* first point\n* second point\n\n## Details\n\n1. one\n2. two\n\n```python\nprint("done")\n```
<html>\n  <body class="page">\n    <p>Hello &amp; welcome</p>\n  </body>\n</html>""".split("\n")

FOREIGN = ["Où est la gare, s'il vous plaît ?", "Die Straße ist heute gesperrt.", "¿Cuánto cuesta el pan?",
           "Привет, как дела?", "今日はいい天気ですね。", "你好，世界", "안녕하세요", "شكرا جزيلا", "naïve café, 20 °C — “fine”", "👍🙂🚀"]


def sentence(rng):
    words = f"{rng.choice(SUBJECTS)} {rng.choice(VERBS)} {rng.choice(OBJECTS)} {rng.choice(ENDINGS)}"
    return words[0].upper() + words[1:] + rng.choice([".", ".", ".", "!", "?", ";", ":"])


def record(rng):
    return json.dumps(
        {
            "id": rng.randrange(100000),
            "model": rng.choice(["tiny", "small", "large"]),
            "role": rng.choice(["user", "assistant", "system", "tool"]),
            "content": sentence(rng),
            "temperature": round(rng.random(), 2),
            "stream": rng.random() < 0.5,
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
        indent=rng.choice([None, 2]),
    )


def corpus():
    rng = random.Random(1337)
    for _ in range(6000):
        draw = rng.random()
        if draw < 0.62:
            yield " ".join(sentence(rng) for _ in range(rng.randrange(1, 5)))
        elif draw < 0.76:
            yield rng.choice(QUESTIONS)
        elif draw < 0.86:
            yield record(rng)
        elif draw < 0.95:
            yield rng.choice(CODE).replace("\\n", "\n")
        else:
            yield f"{rng.choice(FOREIGN)} {rng.randrange(1900, 2100)}-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}"


def main():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(), trainer)
    (HERE / "tokenizer.json").write_text(tokenizer.to_str(pretty=False) + "\n", encoding="utf-8")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "clean_up_tokenization_spaces": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (HERE / "tokenizer_config.json").write_text(
        json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    print(f"{tokenizer.get_vocab_size()} tokens")


if __name__ == "__main__":
    main()
