"""Writes a tiny Qwen2 with random weights, and a tokenizer and chat template of its own, as a model directory.

Everything that shapes a prompt is there and differs between the APIs: the tokenizer puts a BOS token
before plain text, while the chat template writes every special token itself and brings a system message
when the conversation has none.

usage: make_model.py DIRECTORY
"""

import random
import sys

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer

BOS, START, END = "<|begin|>", "<|turn|>", "<|end|>"

TEMPLATE = """\
{{- bos_token }}
{%- if messages[0].role != 'system' %}
    {{- '<|turn|>system\\nAnswer in few words.<|end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {{- '<|turn|>' + message.role + '\\n' + message.content | trim + '<|end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|turn|>assistant\\n' }}
{%- endif %}
"""


def sentences(count):
    draw = random.Random(11)
    who = ["the router", "a worker", "one engine", "every prompt", "the cache", "some block", "a reader"]
    does = ["keeps", "sends", "finds", "forgets", "counts", "asks for", "waits for", "measures"]
    what = ["the longest prefix", "an answer", "seven tokens", "its neighbour", "the last event", "a free page"]
    when = ["today", "at noon", "before 1984", "in the end", "once more", "without haste"]
    return [" ".join(map(draw.choice, (who, does, what, when))).capitalize() + "." for _ in range(count)]


def main(directory):
    tokenizer = Tokenizer(models.BPE())
    # For a Qwen2, transformers takes the vocabulary and merges from the file and these rules from its own class; with
    # others in the file the engine would not tokenise as the file says.
    rules = Qwen2Tokenizer().backend_tokenizer
    tokenizer.normalizer, tokenizer.pre_tokenizer = rules.normalizer, rules.pre_tokenizer
    tokenizer.decoder = rules.decoder
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = [BOS, START, END]
    options = {"vocab_size": 512, "special_tokens": special, "initial_alphabet": alphabet}
    trainer = trainers.BpeTrainer(**options, show_progress=False)
    tokenizer.train_from_iterator(sentences(2000), trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)])
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token=END, pad_token=END)
    saved.chat_template = TEMPLATE
    saved.save_pretrained(directory)

    torch.manual_seed(11)
    config = Qwen2Config(
        vocab_size=len(saved),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=bos,
        eos_token_id=saved.eos_token_id,
        pad_token_id=saved.pad_token_id,
    )
    Qwen2ForCausalLM(config).to(torch.bfloat16).save_pretrained(directory)
    print(directory, len(saved), "tokens in the vocabulary")


main(sys.argv[1])
