#!/usr/bin/env python3
"""Goldens of chat templates, rendered by transformers' own apply_chat_template. Writes tests/golden/chat/ (run from the repository's root).

    python3 tools/golden/chat.py        # needs transformers, tokenizers, jinja2; last run with 5.24, 0.23.3, 3.1.6

rules.jsonl     small templates, one rule of the language each: {"group", "template", "kwargs"} are kept, what they render to is made anew
                ("text", or "error" and "kind": Python's class, or raise_exception). Message list: one user turn "Hi".
whole.jsonl     the templates below over the conversations below; "generation" = code point ranges inside {% generation %}

The tokenizer has bos_token <s>, eos_token and pad_token </s> and no unk_token; the clock stands at 2026-03-07.
"""
import datetime
import json
import pathlib

import transformers.utils.chat_template_utils as utils
from jinja2.exceptions import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

OUT = pathlib.Path("tests/golden/chat")
SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}

TEMPLATES = {
    "chatml": """{%- for message in messages %}
    {%- if loop.first and message.role != 'system' %}{{ '<|im_start|>system\\nYou are a helper.<|im_end|>\\n' }}{% endif %}
    {{- '<|im_start|>' + message['role'] + '\\n' }}
    {%- if message.role == 'assistant' %}{% generation %}{{ message['content'] | trim }}<|im_end|>{% endgeneration %}{{ '\\n' }}
    {%- else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
""",
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}{% set date_string = strftime_now("%d %b %Y") %}{% endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- if tools is not none %}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{% endfor %}
{%- endif %}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one tool call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}""",
    "alternating": """{%- set ns = namespace(index=0, system='') %}
{%- for message in messages %}
    {%- if message.role == 'system' %}{% set ns.system = message.content %}{% continue %}{% endif %}
    {%- if (message.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('Roles must alternate: ' ~ message.role ~ ' at ' ~ loop.index0) }}{% endif %}
    {%- set ns.index = ns.index + 1 %}
    {%- if message.role == 'user' %}[INST] {{ ns.system ~ '\\n\\n' if ns.system else '' }}{{ message.content }}[/INST]
    {%- else %} {{ message.content ~ eos_token }}{% endif %}
{%- endfor %}""",
    "macros": """{% macro content(c) %}{% if c is string %}{{ c }}{% else %}{% for part in c %}{{ part.text if part.type == 'text' else '<' ~ part.type ~ '>' }}{% endfor %}{% endif %}{% endmacro %}
{%- set last = messages | selectattr('role', 'equalto', 'user') | list | last %}
{%- for message in messages %}
    {%- set text = content(message.content) %}
    {%- if '</think>' in text %}{% set text = text.split('</think>')[-1].lstrip('\\n') %}{% endif %}
{{ message.role | upper }}: {{ text.strip() }}
    {%- if message.reasoning_content is defined and message.reasoning_content is not none %} ({{ message.reasoning_content }}){% endif %}
    {%- if message == last %} *{% endif %}
{%- endfor %}
{% for message in messages[::-1] %}{{ loop.revindex }}{{ message.keys() | list }}{% endfor %}
{{ messages }}""",
}
CALL = {"function": {"name": "weather", "arguments": {"city": "Zürich", "days": 3, "big": 12345678901234567890, "x": [1.0, 1e-07, None, True]}}}
CONVERSATIONS = [
    {"messages": [{"role": "user", "content": "Hello!"}], "add_generation_prompt": True},
    {"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "2+2?"}, {"role": "assistant", "content": " 4 \n"},
                  {"role": "user", "content": "é 😀 <b>&amp;</b> {{x}} {% y %}"}, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nok"}]},
    {"messages": [{"role": "user", "content": "Weather?"}, {"role": "assistant", "content": None, "tool_calls": [CALL]}, {"role": "tool", "content": "cold"}],
     "tools": [{"type": "function", "function": {"name": "weather", "description": "a < b & \"c\" 'd' — é", "parameters": {}}}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "See "}, {"type": "image"}]}, {"role": "assistant", "content": "It's \"red\".", "reasoning": "look"}],
     "kwargs": {"date_string": "1 Jan 2020"}},
    {"messages": [{"role": "user", "content": ""}, {"role": "user", "content": "again"}], "kwargs": {"bos_token": "<bos>"}},
]


def renderer():
    class Pinned(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 3, 7)

    utils.datetime = Pinned
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE()), **SPECIALS)

    def render(template, conversation):
        conversation = json.loads(json.dumps(conversation))
        try:
            return {"text": tokenizer.apply_chat_template(conversation["messages"], tools=conversation.get("tools"), chat_template=template,
                    add_generation_prompt=conversation.get("add_generation_prompt", False), tokenize=False, **conversation.get("kwargs", {}))}
        except Exception as e:
            return {"error": str(e).split("\n")[0], "kind": "raise_exception" if type(e) is TemplateError else type(e).__name__}

    return render


def spans(template, conversation):
    """What lies inside {% generation %}, as the assistant mask of transformers is made."""
    conversation = json.loads(json.dumps(conversation))
    messages = utils._normalize_chat_messages(conversation["messages"])
    return utils.render_jinja_template(conversations=[messages], tools=conversation.get("tools"), chat_template=template, return_assistant_tokens_mask=True,
        add_generation_prompt=conversation.get("add_generation_prompt", False), **{**SPECIALS, **conversation.get("kwargs", {})})[1][0]


def write(name, rows):
    with open(OUT / name, "w", encoding="utf-8", newline="\n") as f:
        for row in rows:
            f.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
                    .replace("\x85", "\\u0085").replace("\x7f", "\\u007f") + "\n")


def main():
    render = renderer()
    rules = [json.loads(line) for line in open(OUT / "rules.jsonl", encoding="utf-8")]
    write("rules.jsonl", [{"group": r["group"], "template": r["template"], "kwargs": r["kwargs"],
                           **render(r["template"], {"messages": [{"role": "user", "content": "Hi"}], "kwargs": r["kwargs"]})} for r in rules])
    rows = []
    for name, template in TEMPLATES.items():
        for conversation in CONVERSATIONS:
            row = {"name": name, "template": template, **conversation, **render(template, conversation)}
            if "{% generation" in template and "text" in row:
                row["generation"] = [list(s) for s in spans(template, conversation)]
            rows.append(row)
    write("whole.jsonl", rows)


main()
