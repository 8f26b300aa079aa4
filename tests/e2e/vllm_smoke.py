"""The requests of vllm_smoke.sh: asks the router what it expects, sends, and compares with what the engine says.

usage: vllm_smoke.py PASS PUBLIC ADMIN REPLAY      ports of the router and of the engine's replay socket

Every pass but `gone` sends the same prompts. `cold` sends each twice to an engine that knows none; `warm` once
to an engine that has them all; `crowded` first fills the engine's cache with others; `gone` sends nothing: the
engine has ended.
"""

import random
import sys
import time

from rig import CHAT, TEXT, Mismatch, Router, open_table

WORKER = 1


class Pass:
    """Sends prompts and prints a line for each."""

    def __init__(self, router, name):
        self.router, self.name = router, name
        self.failures = self.found = self.lost = 0
        print(f"\n### Pass `{name}`\n")
        open_table("visit")

    def prompt(self, title, path, **fields):
        """One prompt, as often as the pass wants it. Returns the last answer."""
        answer = self.visit(title, path, 1, fields, known=self.name == "warm")
        return self.visit(title, path, 2, fields, known=True) if self.name == "cold" else answer

    def visit(self, title, path, visit, fields, known):
        """`known`: every full block of the prompt must be in the cache."""
        try:
            seen = self.router.visit(path, fields)
        except Mismatch as problem:
            self.failures += 1
            print(f"| {title} | {visit} | | | | MISMATCH: {problem} |", flush=True)
            return None
        self.found += seen.predicted
        self.lost += seen.blocks - seen.predicted
        problems = seen.problems()
        if known and seen.predicted != seen.blocks:
            problems.append("a block is missing")
        self.failures += bool(problems)
        print(seen.row(title, visit, f"MISMATCH: {', '.join(problems)}" if problems else "ok"), flush=True)
        return seen.answer

    def close(self):
        """Ends the table. Returns the number of mismatches."""
        if self.name == "crowded" and not (self.found and self.lost):
            self.failures += 1
            print(f"\nMISMATCH: {self.found} blocks found and {self.lost} lost: the pass proves nothing of evictions")
        print(f"\n{self.failures} mismatches")
        return self.failures


def prose(topic, sentences):
    each = "In step {} the router counts the blocks of the {} and keeps the longest prefix."
    return " ".join(each.format(n, topic) for n in range(sentences))


def send_prompts(run):
    draw = random.Random(5)

    def ids(count):
        return [draw.randrange(10, 400) for _ in range(count)]

    def user(content):
        return {"role": "user", "content": content}

    question = [user(prose("question", 12))]
    answer = run.prompt("chat", CHAT, messages=question)
    if answer:
        reply = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
        run.prompt("chat, second turn", CHAT, messages=[*question, reply, user(prose("second turn", 6))])
    parts = [{"type": "text", "text": prose(topic, 5)} for topic in ("first part", "last part")]
    brief = {"role": "system", "content": "Be brief."}
    run.prompt("chat, system message and content parts", CHAT, messages=[brief, user(parts)])
    odd = "Caf\u00e9, cafe\u0301\r\n<|end|>\t\U0001f600 \u65e5\u672c {{ x }} I'LL\u00a0  1984 "
    run.prompt("chat, odd characters and a special token written out", CHAT, messages=[user(odd * 8)])
    usage = {"include_usage": True}
    run.prompt("chat, streamed", CHAT, messages=[user(prose("stream", 9))], stream=True, stream_options=usage)
    run.prompt("chat with a cache salt", CHAT, messages=question, cache_salt="tenant-a")
    run.prompt("completion, text", TEXT, prompt=prose("completion", 10))
    run.prompt("completion, 192 token ids (whole blocks)", TEXT, prompt=ids(192))
    start = ids(100)
    longer = {"max_tokens": 40, "return_token_ids": True}
    answer = run.prompt("completion, 100 token ids, 40 generated", TEXT, prompt=start, **longer)
    if answer:
        generated = answer["choices"][0]["token_ids"]
        run.prompt("completion, the same with its answer and 30 more", TEXT, prompt=start + generated + ids(30))


def crowd(run, count):
    draw = random.Random(6)
    for n in range(count):
        run.visit(f"filler {n}", TEXT, 1, {"prompt": [draw.randrange(10, 400) for _ in range(320)]}, known=False)


def gone(router):
    """After the engine has ended, nothing may be credited to it."""
    deadline = time.monotonic() + 20
    while (state := router.workers()[WORKER]["stream"]["state"]) != "unproven" and time.monotonic() < deadline:
        time.sleep(0.2)
    explained = router.explain({"model": "tiny", "prompt": prose("completion", 10)})
    predicted = explained.get("choice", {}).get("overlap_blocks", 0)
    print(f"\n### Pass `gone`\n\nStream state {state}, blocks predicted {predicted}")
    return state != "unproven" or predicted != 0


def main(name, public, admin, replay):
    router = Router(public, admin, {WORKER: replay})
    if name == "gone":
        return gone(router)
    run = Pass(router, name)
    if name == "crowded":
        crowd(run, 6)
    send_prompts(run)
    return run.close() > 0


sys.exit(main(*sys.argv[1:]))
