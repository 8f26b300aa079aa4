"""What the end-to-end scripts ask of a router, send through it, and compare.

usage: rig.py ports N       prints N free ports
"""

import json
import socket
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass

BLOCK = 32
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


class Mismatch(Exception):
    pass


def call(url, body=None, method=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=120) as response:
            return response.read().decode()
    except urllib.error.HTTPError as error:
        raise Mismatch(f"{url}: {error.code} {error.read().decode()[:500]}") from None


@dataclass
class Visit:
    """One prompt's way through the router."""

    answer: dict | None
    worker: int
    # Tokens and full blocks of the prompt, as the router and the engine count them.
    tokens: int
    engine_tokens: int
    blocks: int
    # Blocks that the router credited that worker with, and the tokens that the engine should then take from its cache.
    predicted: int
    expected: int
    cached: int

    def problems(self):
        found = []
        if self.tokens != self.engine_tokens:
            found.append("token counts differ")
        if self.expected != self.cached:
            found.append("the prediction is not what the engine had")
        return found

    def row(self, title, column, verdict):
        counts = f"{self.tokens}, {self.engine_tokens} | {self.blocks}, {self.predicted} | {self.expected}, {self.cached}"
        return f"| {title} | {column} | {counts} | {verdict} |"


def open_table(column):
    print(f"| prompt | {column} | tokens: router, engine | blocks: in all, predicted | cached: expected, engine | |")
    print("|---|---|---|---|---|---|", flush=True)


class Router:
    """The router under test. `replays` has the port of each worker's replay socket, by the worker's id."""

    def __init__(self, public, admin, replays):
        self.public = f"http://127.0.0.1:{public}"
        self.admin = f"http://127.0.0.1:{admin}"
        self.replays = replays

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

    def workers(self):
        """The state of each worker, by id."""
        workers = json.loads(call(self.admin + "/v1/workers"))["workers"]
        return {worker["id"]: worker for worker in workers}

    def visit(self, path, body, worker=None):
        """Waits until the router knows all that was said, asks what it expects, and sends. `worker` pins the request."""
        self.settle()
        hints = {"extra_fields": ["worker_id"]} | ({"backend_instance_id": worker} if worker else {})
        body = {"model": "tiny", "temperature": 0, "max_tokens": 8, "ignore_eos": True, "nvext": hints, **body}
        explained = self.explain(body)
        if "choice" not in explained:
            raise Mismatch(f"explain chose no worker: {explained}")
        answer, usage = self.send(path, body)
        served = answer["nvext"]["worker_id"]["decode_worker_id"] if answer else explained["choice"]["worker_id"]
        row = next(row for row in explained["candidates"] if row["worker_id"] == served)
        predicted = sum(row["overlap_blocks"].values())
        # The engine computes at least the last token itself, and so the block that holds it.
        expected = min(predicted, (usage["prompt_tokens"] - 1) // BLOCK) * BLOCK
        cached = usage["prompt_tokens_details"]["cached_tokens"] or 0
        tokens = explained["prompt_tokens"]
        return Visit(
            answer, served, tokens, usage["prompt_tokens"], tokens // BLOCK, predicted, expected, cached
        )

    def settle(self):
        """Waits until the router has applied the engines' last events, no other comes, and no load is left."""
        deadline, before = time.monotonic() + 20, None
        while time.monotonic() < deadline:
            wanted = {worker: last_sequence(port) for worker, port in self.replays.items()}
            now = {worker: (state["stream"], state["load"]) for worker, state in self.workers().items()}
            if now == before and all(worker in now and settled(*now[worker], last) for worker, last in wanted.items()):
                return
            before = now
            time.sleep(0.3)
        # Every further prompt would wait as long.
        sys.exit(f"MISMATCH: the router is not settled after 20 s: {before}; the engines' last events are {wanted}")


def settled(stream, load, last):
    """Whether a worker is. `last`: sequence number of the last batch of its engine, if it has published any."""
    return stream["cursor"] == last and (last is None or stream["state"] == "live") and not any(load.values())


def last_sequence(port):
    """Sequence number of the last batch that the engine published; None before the first."""
    # Not every script has it.
    import zmq

    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"", bytes(8)])
        last = None
        while dealer.poll(5000):
            sequence = dealer.recv_multipart()[2]
            if sequence == b"\xff" * 8:
                return last
            last = int.from_bytes(sequence, "big")
    sys.exit(f"no answer from the engine's replay socket at port {port}")


if __name__ == "__main__":
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[2]))]
    print(*(server.getsockname()[1] for server in taken))
