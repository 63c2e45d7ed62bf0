/* agoge render-chat: what the model's chat template makes of a conversation. */
#include "cli/commands.h"
#include "cli/prompting.h"

#include "base/json.h"

#include <string.h>

typedef struct {
    cli_model_options model;
    cli_format_options format;
    const char *messages, *tools, *documents, *date;
    cli_list sets;
    bool add_generation_prompt;
} options;

static const cli_option table[] = {
    CLI_MODEL(options, model),
    CLI_STRING("messages", options, messages, "FILE", "a JSON list of messages", CLI_REQUIRED),
    CLI_FLAG("add-generation-prompt", options, add_generation_prompt, "end with what an answer begins with"),
    CLI_STRING("tools", options, tools, "FILE", "a JSON list of tools", 0),
    CLI_STRING("documents", options, documents, "FILE", "a JSON list of documents", 0),
    CLI_REPEATED("set", options, sets, "NAME=JSON", "a further variable of the template"),
    CLI_STRING("date", options, date, "YYYY-MM-DD", "today, as the template sees it", 0),
    CLI_FORMAT(options, format),
    CLI_END,
};

static ag_status read_variables(json_t *variables, const cli_list *sets, ag_err *err)
{
    for (int i = 0; i < sets->n; i++) {
        const char *equals = strchr(sets->items[i], '=');
        if (!equals || equals == sets->items[i])
            return ag_fail(err, AG_E_USAGE, "--set is '%s'; give NAME=JSON, like enable_thinking=false", sets->items[i]);
        json_t *value;
        AG_TRY(ag_json_parse_exact(&value, equals + 1, strlen(equals + 1), "--set", err));
        ag_str name = {0};
        ag_str_add_n(&name, sets->items[i], (size_t)(equals - sets->items[i]));
        json_object_set_new(variables, name.text, value);
        ag_str_free(&name);
    }
    return AG_OK;
}

static ag_status render(const options *o, const cli_session *s, ag_err *err)
{
    json_t *messages = NULL, *tools = NULL, *documents = NULL, *variables = json_object();
    ag_str text = {0};
    ag_status status = cli_load_list(&messages, o->messages, "messages", err);
    if (!status && o->tools) status = cli_load_list(&tools, o->tools, "tools", err);
    if (!status && o->documents) status = cli_load_list(&documents, o->documents, "documents", err);
    if (!status) status = read_variables(variables, &o->sets, err);
    if (!status)
        status = ag_model_text_render(s->text, &(ag_chat_render_args){
            .messages = messages, .tools = tools, .documents = documents, .variables = variables, .date = o->date,
            .add_generation_prompt = o->add_generation_prompt}, &text, NULL, err);
    if (!status) cli_print_text(&text, &o->format);
    ag_str_free(&text);
    ag_json_free(&messages);
    ag_json_free(&tools);
    ag_json_free(&documents);
    ag_json_free(&variables);
    return status;
}

static int run(int argc, char **argv)
{
    options o = {.model = CLI_MODEL_DEFAULT, .format = CLI_FORMAT_DEFAULT};
    ag_err err;
    cli_session s;
    CLI_PARSE(&cli_render_chat, &o, argc, argv);
    ag_status status = cli_session_open(&s, &o.model, &(cli_compute_options){0}, CLI_TEXT, &err);
    if (!status) status = render(&o, &s, &err);
    cli_session_close(&s);
    return status ? cli_fail(&err) : 0;
}

const cli_command cli_render_chat = {
    .name = "render-chat", .summary = "a conversation as the model's chat template writes it", .options = table, .run = run};
