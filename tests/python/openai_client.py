"""What OpenAI's Python client sees of a router with mock engines: `openai_client.py URL`.

Run by ci/python-client.sh, which starts the router.
"""

import sys
import time

from openai import APIStatusError, OpenAI

# Long enough for several blocks, so that a repeat has a prefix to find.
SYSTEM = "You are asked about the engines of a fleet, and answer in one short sentence. " * 8
MESSAGES = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Which engine is busy?"}]


def models(client: OpenAI) -> str:
    names = [model.id for model in client.models.list()]
    assert names, "GET /v1/models lists nothing"
    return names[0]


def chat(client: OpenAI, model: str) -> None:
    answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=8)
    assert answer.choices[0].message.content, answer
    assert answer.usage.completion_tokens == 8, answer.usage


def repeated_prefix(client: OpenAI, model: str) -> None:
    # Events take a moment from the engine to the index; until they are there, a repeat may go elsewhere.
    deadline = time.monotonic() + 10
    while True:
        answer = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=1)
        cached = answer.usage.prompt_tokens_details.cached_tokens or 0
        if cached > 0:
            return
        assert time.monotonic() < deadline, f"a repeated prompt found nothing cached: {answer.usage}"


def stream(client: OpenAI, model: str) -> None:
    chunks = list(
        client.chat.completions.create(
            model=model, messages=MESSAGES, max_tokens=8, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text, "the stream said nothing"
    assert any(chunk.choices and chunk.choices[0].finish_reason == "length" for chunk in chunks)
    assert chunks[-1].usage.completion_tokens == 8, chunks[-1]


def completion(client: OpenAI, model: str) -> None:
    answer = client.completions.create(model=model, prompt="The fleet", max_tokens=4)
    assert answer.choices[0].finish_reason == "length", answer


def unknown_model(client: OpenAI, _model: str) -> None:
    try:
        client.chat.completions.create(model="nobody-serves-this", messages=MESSAGES)
    except APIStatusError as error:
        assert error.status_code == 404, error
    else:
        raise AssertionError("a model that nobody serves was answered")


def main() -> None:
    client = OpenAI(base_url=sys.argv[1] + "/v1", api_key="none", max_retries=0, timeout=30)
    model = models(client)
    for scenario in (chat, repeated_prefix, stream, completion, unknown_model):
        scenario(client, model)
        print(f"ok: {scenario.__name__}")


if __name__ == "__main__":
    main()
