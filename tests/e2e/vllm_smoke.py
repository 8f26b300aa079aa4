"""The requests of vllm_smoke.sh: asks the router what it expects, sends, and compares with what the engine says.

usage: vllm_smoke.py ports N                       prints N free ports
       vllm_smoke.py PASS PUBLIC ADMIN REPLAY      ports of the router and of the engine's replay socket

Every pass but `gone` sends the same prompts. `cold` sends each twice to an engine that knows none; `warm` once
to an engine that has them all; `crowded` first fills the engine's cache with others; `gone` sends nothing: the
engine has ended.
"""

import json
import random
import socket
import sys
import time
import urllib.error
import urllib.request

import zmq

BLOCK = 32
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Mismatch(Exception):
    pass


class Stack:
    """The router under test and the engine's replay socket."""

    def __init__(self, public, admin, replay):
        self.public = f"http://127.0.0.1:{public}"
        self.admin = f"http://127.0.0.1:{admin}"
        self.replay = f"tcp://127.0.0.1:{replay}"

    def send(self, path, body):
        """The answer, and its usage."""
        raw = call(self.public + path, body)
        if not body.get("stream"):
            answer = json.loads(raw)
            return answer, answer["usage"]
        chunks = [line.removeprefix("data: ") for line in raw.split("\n") if line.startswith("data: ")]
        if chunks[-1] != "[DONE]":
            raise Mismatch(f"the stream ends with {chunks[-1]!r}")
        return None, json.loads(chunks[-2])["usage"]

    def explain(self, body):
        return json.loads(call(self.admin + "/v1/route/explain", body))

    def worker(self):
        return json.loads(call(self.admin + "/v1/workers"))["workers"][0]

    def settle(self):
        """Waits until the router has applied the engine's last event, no other comes, and no load is left."""
        deadline, before = time.monotonic() + 20, None
        while time.monotonic() < deadline:
            last, worker = self.last_sequence(), self.worker()
            stream, load = worker["stream"], worker["load"]
            state = "live" if last is not None else stream["state"]
            now = {"state": stream["state"], "cursor": stream["cursor"], "load": load}
            if now == before == {"state": state, "cursor": last, "load": dict.fromkeys(load, 0)}:
                return
            before = now
            time.sleep(0.3)
        # Every further prompt would wait as long.
        sys.exit(f"MISMATCH: the router is not settled after 20 s: {before}; the engine's last event is {last}")

    def last_sequence(self):
        """Sequence number of the last batch that the engine published; None before the first."""
        with zmq.Context.instance().socket(zmq.DEALER) as dealer:
            dealer.setsockopt(zmq.LINGER, 0)
            dealer.connect(self.replay)
            dealer.send_multipart([b"", bytes(8)])
            last = None
            while dealer.poll(5000):
                sequence = dealer.recv_multipart()[2]
                if sequence == b"\xff" * 8:
                    return last
                last = int.from_bytes(sequence, "big")
        sys.exit(f"no answer from the engine's replay socket {self.replay}")


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        raise Mismatch(f"{url}: {error.code} {error.read().decode()[:500]}") from None


class Pass:
    """Sends prompts and prints a line for each."""

    def __init__(self, stack, name):
        self.stack, self.name = stack, name
        self.failures = self.found = self.lost = 0
        print(f"\n### Pass `{name}`\n")
        print("| prompt | visit | tokens: router, engine | blocks: in all, predicted | cached: expected, engine | |")
        print("|---|---|---|---|---|---|")

    def prompt(self, title, path, **fields):
        """One prompt, as often as the pass wants it. Returns the last answer."""
        answer = self.visit(title, path, 1, fields, known=self.name == "warm")
        return self.visit(title, path, 2, fields, known=True) if self.name == "cold" else answer

    def visit(self, title, path, visit, fields, known):
        """`known`: every full block of the prompt must be in the cache."""
        body = {"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": True, **fields}
        try:
            self.stack.settle()
            explained = self.stack.explain(body)
            if "choice" not in explained:
                raise Mismatch(f"explain chose no worker: {explained}")
            answer, usage = self.stack.send(path, body)
        except Mismatch as problem:
            self.failures += 1
            print(f"| {title} | {visit} | | | | MISMATCH: {problem} |", flush=True)
            return None
        tokens, predicted = explained["prompt_tokens"], explained["choice"]["overlap_blocks"]
        blocks = tokens // BLOCK
        # The engine computes at least the last token itself, and so the block that holds it.
        expected = min(predicted, (usage["prompt_tokens"] - 1) // BLOCK) * BLOCK
        cached = usage["prompt_tokens_details"]["cached_tokens"] or 0
        self.found += predicted
        self.lost += blocks - predicted
        problems = []
        if tokens != usage["prompt_tokens"]:
            problems.append("token counts differ")
        if expected != cached:
            problems.append("the prediction is not what the engine had")
        if known and predicted != blocks:
            problems.append("a block is missing")
        self.failures += bool(problems)
        verdict = f"MISMATCH: {', '.join(problems)}" if problems else "ok"
        counts = f"{tokens}, {usage['prompt_tokens']} | {blocks}, {predicted} | {expected}, {cached}"
        print(f"| {title} | {visit} | {counts} | {verdict} |", flush=True)
        return answer

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


def gone(stack):
    """After the engine has ended, nothing may be credited to it."""
    deadline = time.monotonic() + 20
    while (state := stack.worker()["stream"]["state"]) != "unproven" and time.monotonic() < deadline:
        time.sleep(0.2)
    explained = stack.explain({"model": "tiny", "prompt": prose("completion", 10)})
    predicted = explained.get("choice", {}).get("overlap_blocks", 0)
    print(f"\n### Pass `gone`\n\nStream state {state}, blocks predicted {predicted}")
    return state != "unproven" or predicted != 0


def main(name, *ports):
    stack = Stack(*ports)
    if name == "gone":
        return gone(stack)
    run = Pass(stack, name)
    if name == "crowded":
        crowd(run, 6)
    send_prompts(run)
    return run.close() > 0


if sys.argv[1] == "ports":
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[2]))]
    print(*(server.getsockname()[1] for server in taken))
else:
    sys.exit(main(*sys.argv[1:]))
