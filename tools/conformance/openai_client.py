#!/usr/bin/env python3
"""The openai package of PyPI, unchanged, against a running `agoge serve`: chat, streaming, tools, JSON schema, logprobs, errors.

    openai_client.py http://127.0.0.1:8000/v1 [KEY]

The server has a base and at least one adapter. What is checked is the protocol; what the model says is not."""
import json, sys
from typing import Annotated

import openai
from pydantic import BaseModel, Field

BASE, KEY = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "none"
client = openai.OpenAI(base_url=BASE, api_key=KEY, max_retries=0, timeout=120)
n_checks = 0


def check(condition, what):
    global n_checks
    n_checks += 1
    if not condition:
        raise SystemExit(f"BAD {what}")


def refused(kind, what, **request):
    request = {"model": models[0], "messages": QUESTION, **request}
    try:
        client.chat.completions.create(**request)
    except kind as e:
        check(what in str(e), f"{what!r} is not in {e}")
        return e
    raise SystemExit(f"BAD not refused: {request}")


models = [m.id for m in client.models.list()]
check(len(models) >= 2, "a base and an adapter are listed")
check(client.models.retrieve(models[1]).id == models[1], "one model is told")
QUESTION = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Name three colours."}]

# Chat, whole and streamed.
whole = client.chat.completions.create(model=models[0], messages=QUESTION, temperature=0, max_tokens=32)
text = whole.choices[0].message.content
check(whole.object == "chat.completion" and whole.choices[0].message.role == "assistant" and text, "an answer comes")
check(whole.choices[0].finish_reason in ("stop", "length"), "it says how it ended")
check(whole.usage.total_tokens == whole.usage.prompt_tokens + whole.usage.completion_tokens > 0, "tokens are counted")
pieces, usage, finish = [], None, None
with client.chat.completions.create(model=models[0], messages=QUESTION, temperature=0, max_tokens=32, stream=True,
                                    stream_options={"include_usage": True}) as stream:
    for chunk in stream:
        if chunk.usage:
            usage = chunk.usage
            check(not chunk.choices, "usage comes by itself")
            continue
        if chunk.choices[0].delta.content:
            pieces.append(chunk.choices[0].delta.content)
        finish = chunk.choices[0].finish_reason or finish
check("".join(pieces) == text and len(pieces) > 3, "the stream is the same answer in pieces")
check(finish == whole.choices[0].finish_reason and usage.completion_tokens == whole.usage.completion_tokens, "it ends the same way")

# The helper of the package itself, which checks every event.
with client.chat.completions.stream(model=models[0], messages=QUESTION, temperature=0, max_tokens=16) as stream:
    for _ in stream:
        pass
    check(stream.get_final_completion().choices[0].message.content == text[:len(stream.get_final_completion().choices[0].message.content)], "stream()")

# Adapters, several choices, seeds, stop.
other = client.chat.completions.create(model=models[1], messages=QUESTION, temperature=0, max_tokens=32)
check(other.model == models[1], "the adapter answers under its name")
three = [client.chat.completions.create(model=models[0], messages=QUESTION, temperature=1.2, n=3, seed=5, max_tokens=16) for _ in range(2)]
check([c.message.content for c in three[0].choices] == [c.message.content for c in three[1].choices], "a seed repeats its answers")
check(len({c.message.content for c in three[0].choices}) > 1, "choices differ")
stopped = client.chat.completions.create(model=models[0], messages=QUESTION, temperature=0, max_tokens=32, stop=[text[5:8]])
check(text[5:8] not in stopped.choices[0].message.content and text.startswith(stopped.choices[0].message.content), "stop")
parts = client.chat.completions.create(model=models[0], temperature=0, max_completion_tokens=32,
                                       messages=[QUESTION[0], {"role": "user", "content": [{"type": "text", "text": "Name three "}, {"type": "text", "text": "colours."}]}])
check(parts.choices[0].message.content == text, "parts of text are one text")
client.chat.completions.create(model=models[0], messages=[{"role": "developer", "content": "Be brief."}, QUESTION[1]], max_tokens=2, user="me", store=False,
                               metadata={"a": "b"}, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5, logit_bias={"11": -100}, extra_body={"top_k": 20, "min_p": 0.05})

# Log-probabilities.
logged = client.chat.completions.create(model=models[0], messages=QUESTION, temperature=0, max_tokens=8, logprobs=True, top_logprobs=5)
content = logged.choices[0].logprobs.content
check(len(content) == logged.usage.completion_tokens and all(len(t.top_logprobs) == 5 and t.logprob <= 0 for t in content), "log-probabilities")
check(b"".join(bytes(t.bytes) for t in content).decode() == logged.choices[0].message.content, "the tokens' bytes are the answer")
check(all(t.token == t.top_logprobs[0].token for t in content), "greedy takes the likeliest")


# JSON: any object, a schema, and the package's own parsing of a class.
class Person(BaseModel):
    name: Annotated[str, Field(max_length=20)]
    age: int
    pets: Annotated[list[Annotated[str, Field(max_length=10)]], Field(max_length=3)]
    town: Annotated[str, Field(max_length=20)] | None


free = client.chat.completions.create(model=models[0], messages=[{"role": "user", "content": "Describe a cat as JSON."}], temperature=0, max_tokens=300,
                                      response_format={"type": "json_object"})
if free.choices[0].finish_reason == "stop":
    check(isinstance(json.loads(free.choices[0].message.content), dict), "json_object")
for seed in range(3):
    schema = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "sizes": {"type": "array", "items": {"type": "integer"}, "maxItems": 3}},
              "required": ["colour", "sizes"], "additionalProperties": False}
    kept = client.chat.completions.create(model=models[seed % 2], messages=QUESTION, seed=seed, temperature=1.5, max_tokens=400,
                                          response_format={"type": "json_schema", "json_schema": {"name": "thing", "strict": True, "schema": schema}})
    if kept.choices[0].finish_reason == "stop":
        value = json.loads(kept.choices[0].message.content)
        check(value["colour"] in ("red", "green") and len(value["sizes"]) <= 3 and all(type(s) is int for s in value["sizes"]), "json_schema")
try:
    parsed = client.chat.completions.parse(model=models[0], messages=[{"role": "user", "content": "Invent a person."}], temperature=0, max_tokens=400,
                                           response_format=Person)
    check(isinstance(parsed.choices[0].message.parsed, Person), "parse() gives the class")
except openai.LengthFinishReasonError:
    print("the model did not end its person within 400 tokens: parse() was not shown")

# Tools, where the model's template takes them.
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "of a town", "parameters": {
    "type": "object", "properties": {"town": {"type": "string", "maxLength": 12}, "celsius": {"type": "boolean"}}, "required": ["town", "celsius"]}}}]
try:
    called = client.chat.completions.create(model=models[0], messages=[{"role": "user", "content": "Weather in Oslo?"}], tools=TOOLS, tool_choice="required",
                                            temperature=0, max_tokens=200)
    call = called.choices[0].message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    check(called.choices[0].finish_reason == "tool_calls" and call.function.name == "weather" and set(arguments) == {"town", "celsius"}, "a call is made")
    client.chat.completions.create(model=models[0], tools=TOOLS, max_tokens=8, messages=[
        {"role": "user", "content": "Weather in Oslo?"}, called.choices[0].message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "{\"degrees\": 3}"}])
    with client.chat.completions.stream(model=models[0], messages=[{"role": "user", "content": "Weather in Oslo?"}], tools=TOOLS, tool_choice="required",
                                        temperature=0, max_tokens=200) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion().choices[0]
        check(final.message.tool_calls[0].function.name == "weather" and final.finish_reason == "tool_calls", "a streamed call is put together")
    tools = "shown"
except openai.BadRequestError as e:
    check("template" in str(e), "why tools are refused is said")
    tools = "refused by this model's template"

# Completions.
plain = client.completions.create(model=models[0], prompt=["The sky is", "Water is"], max_tokens=5, temperature=0, logprobs=2, n=1)
check(len(plain.choices) == 2 and len(plain.choices[0].logprobs.tokens) == 5, "completions")
check("".join(c.choices[0].text for c in client.completions.create(model=models[0], prompt="The sky is", max_tokens=5, temperature=0, stream=True)) == plain.choices[0].text,
      "completions stream")

# Errors, as the package's own classes.
refused(openai.NotFoundError, "does not exist", model="gpt-none")
refused(openai.BadRequestError, "temperature", temperature=-1)
refused(openai.BadRequestError, "pattern", response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "string", "pattern": "a"}}})
e = refused(openai.BadRequestError, "context", max_tokens=10_000_000)
check(e.code == "context_length_exceeded" and e.body["type"] == "invalid_request_error", "what does not fit has its code")
refused(openai.BadRequestError, "did you mean", extra_body={"temprature": 1})
if KEY != "none":
    try:
        openai.OpenAI(base_url=BASE, api_key="wrong", max_retries=0).models.list()
        raise SystemExit("BAD a wrong key is taken")
    except openai.AuthenticationError:
        pass
print(f"{n_checks} checks of openai {openai.__version__}; tools {tools}")
