"""The requests of vllm.sh: asks the router what it expects, sends, and compares with what the engines say.

usage: vllm.py PASS PUBLIC ADMIN ENGINE1 REPLAY1 ENGINE2 REPLAY2      ports

A prompt is five blocks that its group shares and 20 tokens of its own, unless a pass says otherwise. A ghost is a
block that the router credits a worker with and its engine does not have.
"""

import json
import random
import sys
import time

from rig import BLOCK, TEXT, Mismatch, Router, call, open_table

SHARED, OWN = 5, 20
GROUPS = 5
CACHE_BLOCKS = 63
FILLER_BLOCKS = 10


def tokens(seed, count):
    draw = random.Random(seed)
    return [draw.randrange(10, 400) for _ in range(count)]


def group(name, own):
    """A prompt of a group. Equal names share their blocks, whatever their own tokens."""
    return tokens(name, SHARED * BLOCK) + tokens(f"{name}, {own}", OWN)


class Pass:
    """Sends prompts and prints a line for each."""

    def __init__(self, router, name):
        self.router, self.name = router, name
        self.failures, self.fillers, self.cached = 0, 0, []

    def ask(self, title, prompt, worker=None, want=None, late=False, **fields):
        """Sends a prompt, to `worker` or where the router likes. `want`: the blocks that are to be predicted; `late`: the
        engine keeps to itself what it lost until this prompt, so the prediction may be wrong once."""
        body = {"prompt": prompt, "max_tokens": 2, **fields}
        try:
            seen = self.router.visit(TEXT, body, worker)
        except Mismatch as problem:
            self.failures += 1
            print(f"| {title} | | | | | MISMATCH: {problem} |", flush=True)
            return None
        problems = seen.problems()
        if want is not None and seen.predicted != want:
            problems.append(f"{want} blocks were to be predicted")
        verdict = "ok"
        if problems:
            verdict = f"MISMATCH: {', '.join(problems)}"
            if late and seen.cached == 0:
                verdict = "not told yet"
            else:
                self.failures += 1
        self.cached.append(seen.cached)
        print(seen.row(title, seen.worker, verdict), flush=True)
        return seen

    def fill(self, worker, fillers):
        """Prompts that nobody asks for again: every ten blocks of the cache that are still free, or the longest unused."""
        for _ in range(fillers):
            self.fillers += 1
            title = f"filler {self.fillers}"
            self.ask(title, tokens(f"{self.name}, {title}", FILLER_BLOCKS * BLOCK), worker, 0)

    def fail(self, why):
        self.failures += 1
        print(f"\nMISMATCH: {why}")


def round_robin(run):
    """An odd number of groups, visited in order twice: each second visit is at the other worker."""
    first, second = visit_twice(run, "round robin", 0)
    if any(one == other for one, other in zip(first, second)):
        run.fail("a group met its first worker again")
    total(run)


def kv(run):
    """As many other groups, by another frontend: each second visit is where the first one was."""
    visit_twice(run, "kv", SHARED)
    total(run)


def visit_twice(run, name, again):
    """The workers of the first and of the second visits."""
    workers = ([], [])
    for visit, want in ((1, 0), (2, again)):
        for number in range(GROUPS):
            seen = run.ask(f"group {number}, visit {visit}", group(f"{name} {number}", visit), want=want)
            workers[visit - 1].append(seen and seen.worker)
    return workers


def total(run):
    print(f"\nCached tokens: {run.cached}, in all {sum(run.cached)}")


def evict(run):
    """Less than the cache holds, then more: some of the groups are lost, some are not, and the router knows which."""
    whole = tokens("whole blocks", SHARED * BLOCK)
    run.ask("whole blocks", whole, 1, 0)
    # The last block is computed and stored again, so that there are two of it.
    run.ask("whole blocks again", whole, 1, SHARED)
    for number in range(GROUPS):
        run.ask(f"group {number}", group(f"evict {number}", 1), 1, 0)
    run.fill(1, 4)
    seen = [run.ask(f"group {n} again", group(f"evict {n}", 2), 1) for n in reversed(range(GROUPS))]
    seen.append(run.ask("whole blocks, later", whole, 1))
    run.fill(1, CACHE_BLOCKS // FILLER_BLOCKS + 1)
    seen.append(run.ask("whole blocks, much later", whole, 1, 0))
    found = [visit.predicted for visit in seen if visit]
    if not any(found) or all(found):
        run.fail(f"blocks found again: {found}; that proves nothing of evictions")


def reset(run, engine):
    """An idle engine says that it emptied its cache when it next computes something, and not before."""
    for number in range(3):
        run.ask(f"group {number}", group(f"reset {number}", 1), 1, 0)
    run.ask("group 0 again", group("reset 0", 2), 1, SHARED)
    answer = json.loads(call(f"http://127.0.0.1:{engine}/reset_prefix_cache", method="POST"))
    print(f"| `POST /reset_prefix_cache` on engine 1 | | | | | {json.dumps(answer)} |")
    time.sleep(2)
    run.ask("group 0, reset", group("reset 0", 3), 1, 0, late=True)
    run.ask("group 1, reset", group("reset 1", 3), 1, 0)
    run.ask("group 2, reset", group("reset 2", 3), 1, 0)
    for number in range(3):
        run.ask(f"group {number}, after that", group(f"reset {number}", 4), 1, SHARED)


def lora(run):
    """One prompt under the model and under its adapter: two caches."""
    for model, visit, want in (("tiny", 1, 0), ("ad1", 1, 0), ("ad1", 2, SHARED), ("tiny", 2, SHARED)):
        run.ask(f"model {model}, visit {visit}", group("lora", visit), 1, want, model=model)
    run.fill(1, CACHE_BLOCKS // FILLER_BLOCKS + 1)
    for model in ("ad1", "tiny"):
        run.ask(f"model {model}, all evicted", group("lora", 3), 1, 0, model=model)


def salt(run):
    """One prompt under two salts and under none: three caches."""
    a, b, none = ({"cache_salt": "a"}, {"cache_salt": "b"}, {})
    for fields, visit, want in ((a, 1, 0), (b, 1, 0), (a, 2, SHARED), (none, 1, 0), (b, 2, SHARED), (none, 2, SHARED)):
        title = f"salt {fields.get('cache_salt', 'none')}"
        run.ask(f"{title}, visit {visit}", group("salt", visit), 2, want, **fields)
    run.fill(2, CACHE_BLOCKS // FILLER_BLOCKS + 1)
    for fields in (a, b, none):
        run.ask(f"salt {fields.get('cache_salt', 'none')}, all evicted", group("salt", 3), 2, 0, **fields)


def report(run):
    """`kv_cache_report_mode` has an engine publish a reused prefix again, as if it had stored it once more."""
    for again in (1, 2):
        run.ask(f"time {again}", group("report", (again, 1)), 1, 0)
        for visit in (2, 3):
            fields = {"vllm_xargs": {"kv_cache_report_mode": "full"}}
            run.ask(f"time {again}, published again", group("report", (again, visit)), 1, SHARED, **fields)
        run.fill(1, CACHE_BLOCKS // FILLER_BLOCKS + 1)
    run.ask("all evicted", group("report", 9), 1, 0)


def fill(run):
    """What the next passes ask for, at either worker."""
    for worker in (1, 2):
        for number in range(3):
            run.ask(f"group {number}", group(f"restart {number}", (worker, 1)), worker, 0)
            run.ask(f"group {number} again", group(f"restart {number}", (worker, 2)), worker, SHARED)


def gone(run):
    """Engine 2 was killed a moment ago. What it held is credited to nobody, and its requests are served by the other."""
    began, body = time.monotonic(), {"model": "tiny", "prompt": group("restart 0", 3)}
    while True:
        rows = run.router.explain(body)["candidates"]
        credit = sum(sum(row["overlap_blocks"].values()) for row in rows if row["worker_id"] == 2)
        if not credit or time.monotonic() > began + 10:
            break
        time.sleep(0.02)
    passed = time.monotonic() - began
    if credit:
        run.fail(f"the dead engine is credited with {credit} blocks after {passed:.1f} s")
    del run.router.replays[2]
    for number in range(3):
        seen = run.ask(f"group {number}", group(f"restart {number}", 4), want=SHARED)
        if seen and seen.worker != 1:
            run.fail("a dead engine has answered")
    print(f"\nNothing was credited to the dead engine from {passed:.2f} s on, counted from the first question")


def back(run):
    """A new engine at the addresses of the dead one."""
    for number in range(3):
        run.ask(f"group {number}", group(f"restart {number}", 5), 2, 0)
    for number in range(3):
        run.ask(f"group {number} again", group(f"restart {number}", 6), 2, SHARED)
        run.ask(f"group {number}, the other worker", group(f"restart {number}", 6), 1, SHARED)


def summary(router):
    """What the router itself says of its predictions, since it was started."""
    print("\n### What the router counted\n")
    for line in call(router.admin + "/metrics").splitlines():
        is_prediction = line.startswith("kvroute_prediction_") and 'tier="gpu"' in line
        is_rejection = line.startswith("kvroute_events_rejected_total") and float(line.split()[-1]) > 0
        if is_prediction or is_rejection:
            print(f"    {line}")
    for worker, state in sorted(router.workers().items()):
        print(f"\nWorker {worker}: stream {state['stream']['state']}, {state['cached_blocks']['gpu']} blocks held")


PASSES = {
    "round-robin": round_robin,
    "kv": kv,
    "evict": evict,
    "reset": reset,
    "lora": lora,
    "salt": salt,
    "report": report,
    "fill": fill,
    "gone": gone,
    "back": back,
}


def main(name, public, admin, engine1, replay1, _engine2, replay2):
    router = Router(public, admin, {1: replay1, 2: replay2})
    if name == "summary":
        return summary(router)
    run = Pass(router, name)
    print(f"\n### Pass `{name}`\n\n{PASSES[name].__doc__ or ''}\n")
    open_table("worker")
    PASSES[name](run, *([engine1] if name == "reset" else []))
    print(f"\n{run.failures} mismatches", flush=True)
    return run.failures > 0


sys.exit(main(*sys.argv[1:]))
