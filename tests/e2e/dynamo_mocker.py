"""The requests of dynamo_mocker.sh, and the comparison of three answers to each question of who holds how much of a prompt:
kvroute's, that of Dynamo's RadixTree, and that of a literal reference.

usage: dynamo_mocker.py model DIRECTORY                            writes a model directory without weights
       dynamo_mocker.py compare PUBLIC ADMIN REPLAY1 REPLAY2       ports of the router and of the engines' replay sockets
"""

import collections
import concurrent.futures
import json
import pathlib
import random
import sys
import threading

from rig import TEXT, Router, call

BLOCK, VOCABULARY = 16, 1000
ROUNDS, REQUESTS, AT_A_TIME = 12, 40, 8
STAND_INS = 8


def write_model(directory):
    """A tokenizer of single words, and what else Dynamo asks a model directory for."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    directory.mkdir(parents=True, exist_ok=True)
    words = {"<end>": 0} | {f"w{number}": number for number in range(1, VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(directory / "tokenizer.json"))
    template = "{% for message in messages %}{{ message.content }} {% endfor %}"
    files = {
        "config.json": {
            "architectures": ["Qwen2ForCausalLM"],
            "model_type": "qwen2",
            "vocab_size": VOCABULARY,
            "hidden_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "max_position_embeddings": 8192,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "torch_dtype": "bfloat16",
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": "<end>",
            "chat_template": template,
            "model_max_length": 8192,
        },
        "generation_config.json": {"eos_token_id": 0},
    }
    for name, content in files.items():
        (directory / name).write_text(json.dumps(content))


class Reference:
    """What one engine holds, taken literally from its events: each block by all the tokens up to its end."""

    def __init__(self):
        self.ends = {}  # by the engine's name of a block
        self.copies = collections.Counter()  # by tokens
        # Blocks that stand, or stood since they were last stored, behind one that is not held, and blocks of which one copy
        # of several was removed. Dynamo's tree, which counts no copies, may have forgotten them or what is behind them.
        self.doubted = set()
        self.counts = collections.Counter()

    def take(self, event):
        if event["type"] == "BlockStored":
            self.stored(event["parent_block_hash"], event["block_hashes"], event["token_ids"])
        elif event["type"] == "BlockRemoved":
            self.removed(event["block_hashes"])
        else:
            self.cleared()

    def holds(self, name):
        return self.copies.get(self.ends[name], 0) > 0

    def stored(self, parent, names, tokens):
        end = () if parent is None else self.ends[parent]
        for name, own in zip(names, blocks(tokens)):
            after_doubted = end in self.doubted
            end = end + own
            self.ends[name] = end
            self.counts["stored again" if self.copies[end] else "stored"] += 1
            self.copies[end] += 1
            if after_doubted:
                self.doubted.add(end)
            else:
                self.doubted.discard(end)
        self.doubt()

    def removed(self, names):
        for name in names:
            end = self.ends[name]
            self.copies[end] -= 1
            if self.copies[end] > 0:
                self.counts["one of several copies removed"] += 1
                self.doubted.update(held for held in self.copies if held[: len(end)] == end)
            else:
                self.counts["removed"] += 1
                del self.copies[end]
        self.doubt()

    def doubt(self):
        for end in sorted(self.copies, key=len):
            above = end[:-BLOCK]
            if above and (above not in self.copies or above in self.doubted):
                self.doubted.add(end)

    def cleared(self):
        self.copies.clear()
        self.doubted.clear()
        self.counts["cleared"] += 1

    def overlap(self, prompt):
        ends = [prompt[:end] for end in range(BLOCK, len(prompt) + 1, BLOCK)]
        held = next((n for n, end in enumerate(ends) if not self.copies.get(end)), len(ends))
        return held, any(end in self.doubted for end in ends)


def blocks(tokens):
    return [tuple(tokens[start : start + BLOCK]) for start in range(0, len(tokens) - BLOCK + 1, BLOCK)]


class Tree:
    """Dynamo's RadixTree, fed with the same events."""

    def __init__(self):
        from dynamo.llm import RadixTree

        self.tree, self.events, self.refused = RadixTree(), 0, collections.Counter()

    def apply(self, worker, event):
        if event["type"] == "BlockStored":
            pairs = zip(event["block_hashes"], hashes(event["token_ids"]))
            stored = [{"block_hash": name, "tokens_hash": own, "mm_extra_info": None} for name, own in pairs]
            data = {"stored": {"parent_hash": event["parent_block_hash"], "start_position": None, "blocks": stored}}
        elif event["type"] == "BlockRemoved":
            data = {"removed": {"block_hashes": event["block_hashes"]}}
        else:
            data = "cleared"
        self.events += 1
        try:
            self.tree.apply_event(worker, json.dumps({"event_id": self.events, "data": data, "dp_rank": 0}).encode())
        except RuntimeError as problem:
            self.refused[str(problem)] += 1

    def overlaps(self, prompt):
        scores = self.tree.find_matches(hashes(prompt)).scores
        return {key[0] if isinstance(key, tuple) else key: score for key, score in scores.items()}


def hashes(tokens):
    from dynamo.llm import compute_block_hash_for_seq

    return compute_block_hash_for_seq(list(tokens), BLOCK)


class Stream:
    """One engine's events, read from its replay socket."""

    def __init__(self, worker, port, tree):
        self.worker, self.port, self.tree = worker, port, tree
        self.reference, self.batches, self.gaps = Reference(), [], 0

    def follow(self):
        """Applies what was published since the last time, to the reference and to Dynamo's tree."""
        import msgspec

        for sequence, payload in published(self.port, len(self.batches)):
            self.gaps += sequence != len(self.batches)
            self.batches.append(msgspec.msgpack.decode(payload))
            for event in self.batches[-1][1]:
                self.reference.take(event)
                self.tree.apply(self.worker, event)


def published(port, start):
    """Batches from a sequence number on, as (sequence number, payload)."""
    import zmq

    with zmq.Context.instance().socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send_multipart([b"", start.to_bytes(8, "big")])
        while dealer.poll(5000):
            *_, sequence, payload = dealer.recv_multipart()
            if sequence == b"\xff" * 8:
                return
            yield int.from_bytes(sequence, "big"), payload
    sys.exit(f"no answer from the engine's replay socket at port {port}")


def with_holes(batches, draw):
    """The same stream, but now and then a block goes that others stand behind, and some of those come back."""
    reference, lost = Reference(), []
    store = next(event for batch in batches for event in batch[1] if event["type"] == "BlockStored")
    removal = next(event for batch in batches for event in batch[1] if event["type"] == "BlockRemoved")
    for stamp, events, *rest in batches:
        told = []

        def tell(event):
            told.append(event)
            reference.take(event)

        for event in events:
            if event["type"] == "BlockRemoved":
                event = {**event, "block_hashes": [name for name in event["block_hashes"] if reference.holds(name)]}
            if event.get("block_hashes", True):
                tell(event)
        names = {end: name for name, end in reference.ends.items()}
        if draw.random() < 0.1:
            inner = [end[:-BLOCK] for end in reference.copies if reference.copies.get(end[:-BLOCK])]
            if inner:
                lost.append(draw.choice(inner))
                tell({**removal, "block_hashes": [names[lost[-1]]]})
        if lost and draw.random() < 0.07:
            end = lost.pop(draw.randrange(len(lost)))
            if not reference.copies.get(end):
                own = {"block_hashes": [names[end]], "token_ids": list(end[-BLOCK:])}
                tell({**store, **own, "parent_block_hash": names.get(end[:-BLOCK])})
        yield [stamp, told, *rest]


class Replayer:
    """Stands in for an engine that has published these batches, and publishes no more."""

    def __init__(self, batches):
        import msgspec
        import zmq

        self.payloads = [msgspec.msgpack.encode(batch) for batch in batches]
        self.live, self.replay = (zmq.Context.instance().socket(kind) for kind in (zmq.PUB, zmq.ROUTER))
        self.ports = [socket.bind_to_random_port("tcp://127.0.0.1") for socket in (self.live, self.replay)]
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self):
        while True:
            sender, _, start = self.replay.recv_multipart()
            for sequence in range(int.from_bytes(start, "big"), len(self.payloads)):
                frames = [sender, b"", b"", sequence.to_bytes(8, "big"), self.payloads[sequence]]
                self.replay.send_multipart(frames)
            self.replay.send_multipart([sender, b"", b"", b"\xff" * 8, b""])


def workload(draw):
    """Prompts that share prefixes of several lengths, more than the caches hold."""
    roots = [[draw.randrange(1, VOCABULARY) for _ in range(BLOCK * draw.randrange(2, 12))] for _ in range(14)]
    prompts = []
    while True:
        fork = draw.random()
        if fork < 0.25 and prompts:
            start = list(draw.choice(prompts[-200:]))
        elif fork < 0.35 and prompts:
            earlier = draw.choice(prompts[-200:])
            start = list(earlier[: draw.randrange(1, len(earlier))])
        else:
            start = list(draw.choice(roots))
        prompt = (start + [draw.randrange(1, VOCABULARY) for _ in range(draw.randrange(1, 60))])[:600]
        prompts.append(tuple(prompt))
        yield prompts[-1]


def send(router, prompt):
    """Tokens of a prompt that its engine took from its cache."""
    body = {"model": "tiny", "prompt": list(prompt), "max_tokens": 1 + sum(prompt) % 48, "temperature": 0}
    _, usage = router.send(TEXT, body | {"ignore_eos": True})
    return (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


def compare(public, admin, *replays):
    router = Router(public, admin, dict(enumerate(replays, 1)))
    tree = Tree()
    streams = [Stream(worker, port, tree) for worker, port in router.replays.items()]
    prompts, seen = workload(random.Random(21)), []
    failures = 0
    open_table("round")
    answers = collections.Counter()
    for number in range(1, ROUNDS + 1):
        batch = [next(prompts) for _ in range(REQUESTS)]
        seen += batch
        with concurrent.futures.ThreadPoolExecutor(AT_A_TIME) as clients:
            for cached in clients.map(lambda prompt: send(router, prompt), batch):
                answers["answers"] += 1
                answers["cached"] += cached > 0
        router.settle()
        for stream in streams:
            stream.follow()
        failures += ask(router, tree, streams, seen, number)
    print(f"\n{answers['answers']} answers, {answers['cached']} of them with cached tokens")
    for stream in streams:
        counts = ", ".join(f"{count} {what}" for what, count in sorted(stream.reference.counts.items()))
        print(f"Engine {stream.worker}: {len(stream.batches)} batches, {stream.gaps} gaps; blocks: {counts}")
        failures += stream.gaps
    print(f"RadixTree: {tree.events} events, refused: {dict(tree.refused)}")
    if not any(stream.reference.counts["removed"] for stream in streams):
        failures += 1
        print("MISMATCH: nothing was evicted, which proves little")
    failures += compare_with_holes(router, streams, seen)
    print(f"\n{failures} mismatches")
    return failures > 0


def open_table(first):
    print(
        f"\n| {first} | events | blocks held | prompts x engines | blocks found | kvroute = reference "
        "| Dynamo = kvroute | doubted, equal |"
    )
    print("|---|---|---|---|---|---|---|---|")


def compare_with_holes(router, engines, prompts):
    """The engines' streams up to some point, told by stand-ins, with holes. Returns the number of mismatches."""
    print("\n### With holes")
    open_table("stand-ins")
    tree, streams = Tree(), []
    for worker in range(11, 11 + STAND_INS):
        draw = random.Random(worker)
        batches = engines[worker % len(engines)].batches
        stand_in = Replayer(with_holes(batches[: draw.randrange(len(batches) // 3, len(batches))], draw))
        live, replay = stand_in.ports
        router.replays[worker] = replay
        card = {"id": worker, "url": f"http://127.0.0.1:{live}", "model": "tiny", "block_size": BLOCK, "lease_secs": 600}
        card |= {"kv_events_endpoint": f"tcp://127.0.0.1:{live}", "kv_replay_endpoint": f"tcp://127.0.0.1:{replay}"}
        call(router.admin + "/v1/workers", card)
        streams.append(Stream(worker, replay, tree))
    router.settle()
    for stream in streams:
        stream.follow()
    failures = ask(router, tree, streams, prompts, STAND_INS)
    print(f"\nRadixTree: refused: {dict(tree.refused)}")
    if not any(stream.reference.doubted for stream in streams):
        failures += 1
        print("MISMATCH: there are no holes")
    return failures


def ask(router, tree, streams, prompts, number):
    """Asks all three about every prompt so far, at every worker. Returns the number of mismatches."""
    question = {"model": "tiny", "prompts": [list(prompt) for prompt in prompts]}
    found = json.loads(call(router.admin + "/v1/route/overlaps", question))["prompts"]
    counts, failures = collections.Counter(), []
    for prompt, answer in zip(prompts, found):
        ours = {holder["worker_id"]: holder["overlap_blocks"]["gpu"] for holder in answer["held_by"]}
        theirs = tree.overlaps(prompt)
        for stream in streams:
            mine, dynamo = ours.get(stream.worker, 0), theirs.get(stream.worker, 0)
            wanted, doubted = stream.reference.overlap(prompt)
            counts["asked"] += 1
            counts["found"] += mine
            counts["reference"] += mine == wanted
            counts["doubted"] += doubted
            counts["doubted, equal"] += doubted and mine == dynamo
            counts["dynamo"] += not doubted and mine == dynamo
            if mine != wanted or (mine != dynamo and not doubted):
                failures.append(f"worker {stream.worker}: kvroute {mine}, reference {wanted}, Dynamo {dynamo}")
    held = " + ".join(str(sum(stream.reference.copies.values())) for stream in streams)
    plain = counts["asked"] - counts["doubted"]
    print(
        f"| {number} | {tree.events} | {held} | {counts['asked']} | {counts['found']} | {counts['reference']} of {counts['asked']} "
        f"| {counts['dynamo']} of {plain} | {counts['doubted']}, {counts['doubted, equal']} |",
        flush=True,
    )
    for failure in failures[:5]:
        print(f"MISMATCH: {failure}")
    return len(failures)


if sys.argv[1] == "model":
    write_model(pathlib.Path(sys.argv[2]))
else:
    sys.exit(compare(*sys.argv[2:]))
