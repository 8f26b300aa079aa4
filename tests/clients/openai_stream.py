"""The `openai` package against a running kvroute: what its users do, and what they rely on.

Usage: python openai_stream.py BASE_URL MODEL [KEY CA_FILE]

BASE_URL ends in /v1. With KEY and CA_FILE the server speaks TLS, with a certificate of that authority, and wants that key. Prints a line for each check and exits with 1 if one fails. Written against openai 3.57.0.
"""

import ssl
import sys
import traceback

import openai

CHECKS = []
CHECKS_OF_A_GUARDED_SERVER = []


def check(function):
    CHECKS.append(function)
    return function


def check_if_guarded(function):
    CHECKS_OF_A_GUARDED_SERVER.append(function)
    return function


def expect(condition, *what):
    if not condition:
        raise AssertionError(what)


class Client:
    def __init__(self, base_url, model, key=None, ca_file=None):
        self.base_url, self.key, self.ca_file = base_url, key, ca_file
        self.openai = self.connect(key or "none")
        self.model = model

    def connect(self, key):
        """A client that shows `key`."""
        verify = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else True
        http = openai.DefaultHttpxClient(verify=verify)
        return openai.OpenAI(base_url=self.base_url, api_key=key, http_client=http, max_retries=0, timeout=60)

    def chat(self, text, **more):
        messages = [{"role": "system", "content": "Answer in a few words. " * 8}, {"role": "user", "content": text}]
        return self.openai.chat.completions.create(model=self.model, messages=messages, max_tokens=8, **more)


@check
def models_are_listed(client):
    names = [model.id for model in client.openai.models.list()]
    expect(client.model in names, names)
    expect(client.openai.models.retrieve(client.model).id == client.model)


@check
def a_chat_answers(client):
    answer = client.chat("What does a router do?")
    expect(answer.object == "chat.completion" and answer.model == client.model, answer)
    expect(answer.choices[0].message.role == "assistant", answer)
    expect(answer.choices[0].message.content, answer)
    expect(answer.choices[0].finish_reason in ("length", "stop"), answer)
    usage = answer.usage
    expect(usage.total_tokens == usage.prompt_tokens + usage.completion_tokens, usage)
    expect(usage.completion_tokens == 8, usage)


@check
def a_chat_streams_and_ends_with_its_usage(client):
    chunks = list(client.chat("What does a router do?", stream=True, stream_options={"include_usage": True}))
    ids = {chunk.id for chunk in chunks}
    expect(len(ids) == 1, ids)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(text, chunks)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
    expect(reasons[-1] in ("length", "stop") and not any(reasons[:-1]), reasons)
    usage = chunks[-1].usage
    expect(not chunks[-1].choices and usage is not None, chunks[-1])
    expect(usage.completion_tokens == 8 and usage.prompt_tokens > 16, usage)
    expect(all(chunk.usage is None for chunk in chunks[:-1]), chunks)


@check
def a_repeated_prompt_reports_cached_tokens(client):
    text = "The same question, twice."
    client.chat(text)
    usage = client.chat(text).usage
    # Whichever worker the second goes to, the field has to be there; that it is the same worker is shown elsewhere.
    expect(usage.prompt_tokens_details.cached_tokens is not None, usage)


@check
def a_completion_answers_and_streams(client):
    ask = dict(model=client.model, prompt="Once upon a time", max_tokens=5)
    answer = client.openai.completions.create(**ask)
    expect(answer.object == "text_completion" and answer.choices[0].text, answer)
    expect(answer.usage.completion_tokens == 5, answer.usage)
    pieces = [chunk.choices[0].text for chunk in client.openai.completions.create(stream=True, **ask) if chunk.choices]
    expect("".join(pieces), pieces)


@check
def an_unknown_model_is_not_found(client):
    try:
        client.openai.chat.completions.create(model="nobody", messages=[{"role": "user", "content": "?"}])
    except openai.NotFoundError as error:
        expect(error.status_code == 404 and error.code == "model_not_found", error)
        expect("nobody" in str(error) and client.model in str(error), error)
        return
    raise AssertionError("no error")


@check
def a_bad_request_is_a_bad_request(client):
    try:
        client.openai.chat.completions.create(model=client.model, messages="not a list")
    except openai.BadRequestError as error:
        expect(error.status_code == 400, error)
        return
    raise AssertionError("no error")


@check
def nvext_tells_the_worker_that_answered(client):
    extra = {"nvext": {"extra_fields": ["worker_id"]}}
    answer = client.chat("Who are you?", extra_body=extra)
    worker = answer.model_extra["nvext"]["worker_id"]["decode_worker_id"]
    expect(isinstance(worker, int), answer)
    # And the request can be sent to that worker again.
    extra = {"nvext": {"extra_fields": ["worker_id"], "backend_instance_id": worker}}
    chunks = list(client.chat("Someone else's question.", extra_body=extra, stream=True))
    told = [chunk.model_extra["nvext"]["worker_id"] for chunk in chunks if "nvext" in (chunk.model_extra or {})]
    expect([one["decode_worker_id"] for one in told] == [worker], told)


@check
def headers_of_the_client_do_no_harm(client):
    answer = client.chat("Hello?", extra_headers={"x-request-id": "abc", "x-unknown": "1"}, user="somebody", seed=7)
    expect(answer.choices[0].message.content, answer)


@check
def a_stream_that_is_left_early_does_not_hang(client):
    stream = client.chat("Tell me everything.", stream=True)
    next(iter(stream))
    stream.close()
    expect(client.chat("Still there?").choices, "no answer after an abandoned stream")


@check
def a_request_has_a_name(client):
    headers = {"x-request-id": "job/7"}
    answer = client.openai.chat.completions.with_raw_response.create(
        model=client.model, messages=[{"role": "user", "content": "Who?"}], max_tokens=1, extra_headers=headers
    )
    expect(answer.headers["x-request-id"] == "job/7", answer.headers)
    expect(answer.parse()._request_id == "job/7", answer)


@check_if_guarded
def only_the_key_lets_in(client):
    for key in ["none", client.key[:-1], client.key + "x"]:
        try:
            client.connect(key).models.list()
        except openai.AuthenticationError as error:
            expect(error.status_code == 401 and error.code == "invalid_api_key", error)
            expect(client.key not in str(error), error)
            continue
        raise AssertionError("let in")


@check_if_guarded
def only_the_authority_s_certificate_is_trusted(client):
    http = openai.DefaultHttpxClient()
    stranger = openai.OpenAI(base_url=client.base_url, api_key=client.key, http_client=http, max_retries=0)
    try:
        stranger.models.list()
    except openai.APIConnectionError:
        return
    raise AssertionError("trusted without the authority")


def main():
    if len(sys.argv) not in (3, 5):
        sys.exit(__doc__)
    client = Client(*sys.argv[1:])
    print(f"openai {openai.__version__}")
    failed = 0
    for function in CHECKS + (CHECKS_OF_A_GUARDED_SERVER if client.key else []):
        name = function.__name__.replace("_", " ")
        try:
            function(client)
            print(f"ok      {name}")
        except Exception:  # A check that fails must not hide the others.
            failed += 1
            print(f"FAILED  {name}")
            traceback.print_exc(file=sys.stdout)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
