/* A template of any bytes. One that compiles is rendered over a conversation with tools and made to fail or end within its
 * bounds; what it prints must be valid UTF-8, and its marks must lie in order inside the text. */
#include "base/json.h"
#include "text/chat_template.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static const char conversation[] =
    "{\"messages\": [{\"role\": \"system\", \"content\": \"Be bri\\u00e9f.\"}, {\"role\": \"user\", \"content\": [{\"type\": "
    "\"text\", \"text\": \"Hi\"}]},"
    " {\"role\": \"assistant\", \"content\": null, \"reasoning\": \"so\", \"tool_calls\": [{\"function\": {\"name\": \"f\", "
    "\"arguments\": {\"a\": 1, \"b\": [2.5, true]}}}]},"
    " {\"role\": \"tool\", \"content\": \"\\ud83d\\ude00 <b>\"}], \"tools\": [{\"type\": \"function\", \"function\": "
    "{\"name\": \"f\", \"parameters\": {}}}],"
    " \"variables\": {\"s\": \"Hello World\", \"d\": {\"b\": 1, \"a\": [1, 2]}, \"l\": [3, 1, 2], \"f\": 2.0}}";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static json_t *root;
    ag_err err = {0};
    if (!root && ag_json_parse(&root, conversation, sizeof conversation - 1, "conversation", &err)) abort();
    ag_chat_template *t;
    if (ag_chat_template_compile(&t, (const char *)data, n, "fuzz.jinja", &err)) {
        AG_ASSERT(!t && err.text[0]);
        return 0;
    }
    static const ag_chat_special specials[] = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
    ag_str text = {0};
    ag_chat_marks marks = {0};
    ag_status status = ag_chat_template_render(t,
                                               &(ag_chat_render_args){.messages = json_object_get(root, "messages"),
                                                                      .tools = json_object_get(root, "tools"),
                                                                      .variables = json_object_get(root, "variables"),
                                                                      .add_generation_prompt = true,
                                                                      .specials = specials,
                                                                      .n_specials = 2,
                                                                      .date = "2026-03-07"},
                                               &text, &marks, &err);
    AG_ASSERT(status ? err.text[0] && !text.n && !marks.n : ag_utf8_valid(text.text, text.n));
    for (size_t i = 0; i < marks.n; i++)
        AG_ASSERT(marks.range[i].start <= marks.range[i].end && marks.range[i].end <= text.n &&
                  (!i || marks.range[i - 1].end <= marks.range[i].start));
    free(marks.range);
    ag_str_free(&text);
    ag_chat_template_free(&t);
    return 0;
}
