#include "serve/openai_request.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char NAME[] = "the request";
enum { MAX_ANSWER = 1 << 24, CHAT_TOP_MAX = 20, COMPLETION_TOP_MAX = 5 };

/* Known keys; those behind NULL only in chats or only in completions. */
static const char *const both_keys[] = {
    "model", "max_tokens", "n", "stream", "stream_options", "stop", "temperature", "top_p", "min_p", "top_k", "repetition_penalty", "seed",
    "frequency_penalty", "presence_penalty", "logit_bias", "logprobs", "response_format", "ignore_eos", "user", "metadata", "store",
    "service_tier", "prompt_cache_key", "safety_identifier"};
static const char *const chat_keys[] = {"messages", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs", "max_completion_tokens",
                                        "chat_template_kwargs"};
static const char *const completion_keys[] = {"prompt", "echo", "best_of", "suffix"};
#define N_OF(list) (sizeof list / sizeof *list)

static ag_status check_keys(const json_t *root, bool is_chat, ag_err *err)
{
    const char *known[N_OF(both_keys) + N_OF(chat_keys)];
    size_t n = 0;
    for (size_t i = 0; i < N_OF(both_keys); i++) known[n++] = both_keys[i];
    const char *const *more = is_chat ? chat_keys : completion_keys;
    for (size_t i = 0; i < (is_chat ? N_OF(chat_keys) : N_OF(completion_keys)); i++) known[n++] = more[i];
    for (void *it = json_object_iter((json_t *)(uintptr_t)root); it; it = json_object_iter_next((json_t *)(uintptr_t)root, it)) {
        const char *key = json_object_iter_key(it);
        size_t i = 0;
        while (i < n && strcmp(known[i], key) != 0) i++;
        if (i < n) continue;
        const char *nearest = ag_str_nearest(key, known, n);
        if (nearest) return ag_fail(err, AG_E_USAGE, "unknown key '%.64s'; did you mean '%s'?", key, nearest);
        return ag_fail(err, AG_E_USAGE, "unknown key '%.64s'", key);
    }
    return AG_OK;
}

static ag_status get_number(const json_t *root, const char *key, double *out, double min, double max, ag_err *err)
{
    AG_TRY(ag_json_get_double(root, key, out, NAME, err));
    if (!(*out >= min && *out <= max)) return ag_fail(err, AG_E_USAGE, "'%s' is %g; give a number from %g to %g", key, *out, min, max);
    return AG_OK;
}

static const json_t *value_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    return json_is_null(value) ? NULL : value;
}

/* ---- sampling ---------------------------------------------------------------------------------------------------------------- */
static ag_status read_sampling(ag_api_request *r, ag_err *err)
{
    double temperature = 1, top_p = 1, min_p = 0, repetition = 1;
    int64_t seed = 0;
    AG_TRY(get_number(r->root, "temperature", &temperature, 0, 100, err));
    AG_TRY(get_number(r->root, "top_p", &top_p, 0, 1, err));
    AG_TRY(get_number(r->root, "min_p", &min_p, 0, 1, err));
    AG_TRY(get_number(r->root, "repetition_penalty", &repetition, 0.01, 100, err));
    AG_TRY(get_number(r->root, "frequency_penalty", &r->frequency_penalty, -2, 2, err));
    AG_TRY(get_number(r->root, "presence_penalty", &r->presence_penalty, -2, 2, err));
    int64_t top_k = 0;
    AG_TRY(ag_json_get_int(r->root, "top_k", -1, INT32_MAX, &top_k, NAME, err));
    AG_TRY(ag_json_get_int(r->root, "seed", INT64_MIN, INT64_MAX, &seed, NAME, err));
    r->has_seed = value_of(r->root, "seed") != NULL;
    if (top_p == 0) top_k = 1, top_p = 1; /* the likeliest alone */
    r->sampling = (ag_sampling){.temperature = (float)temperature, .top_k = top_k < 0 ? 0 : top_k, .top_p = (float)top_p, .min_p = (float)min_p,
                                .repeat_penalty = (float)repetition, .seed = (uint64_t)seed};
    return ag_sampling_check(&r->sampling, err);
}

static ag_status read_biases(ag_api_request *r, ag_err *err)
{
    const json_t *biases = value_of(r->root, "logit_bias");
    if (!biases) return AG_OK;
    if (!json_is_object(biases)) return ag_fail(err, AG_E_FORMAT, "'logit_bias' must be an object of token ids and numbers");
    const size_t n = json_object_size(biases);
    if (n > AG_API_MAX_BIASES) return ag_fail(err, AG_E_USAGE, "'logit_bias' has %zu tokens; %d are taken at most", n, AG_API_MAX_BIASES);
    r->biases = ag_arena_array(&r->arena, n + 1, sizeof *r->biases);
    for (void *it = json_object_iter((json_t *)(uintptr_t)biases); it; it = json_object_iter_next((json_t *)(uintptr_t)biases, it)) {
        const char *key = json_object_iter_key(it);
        const json_t *value = json_object_iter_value(it);
        char *end;
        errno = 0;
        const long id = strtol(key, &end, 10);
        if (end == key || *end || errno || id < 0 || id > INT32_MAX)
            return ag_fail(err, AG_E_USAGE, "'logit_bias' has the key '%.32s'; keys are token ids", key);
        const double bias = json_is_number(value) ? json_number_value(value) : NAN;
        if (!(bias >= -100 && bias <= 100)) return ag_fail(err, AG_E_USAGE, "'logit_bias' of token %ld must be a number from -100 to 100", id);
        r->biases[r->n_biases++] = (ag_api_bias){(int32_t)id, (float)bias};
    }
    return AG_OK;
}

static ag_status read_stops(ag_api_request *r, ag_err *err)
{
    const json_t *stop = value_of(r->root, "stop");
    if (!stop) return AG_OK;
    const size_t n = json_is_array(stop) ? json_array_size(stop) : 1;
    if (n > AG_API_MAX_STOPS) return ag_fail(err, AG_E_USAGE, "'stop' has %zu texts; %d are taken at most", n, AG_API_MAX_STOPS);
    for (size_t i = 0; i < n; i++) {
        const char *text = json_string_value(json_is_array(stop) ? json_array_get(stop, i) : stop);
        if (!text) return ag_fail(err, AG_E_FORMAT, "'stop' must be a text or a list of texts");
        if (*text) r->stops[r->n_stops++] = text;
    }
    return AG_OK;
}

static ag_status read_logprobs(ag_api_request *r, ag_err *err)
{
    r->n_top = -1;
    if (!r->is_chat) return ag_json_get_int(r->root, "logprobs", 0, COMPLETION_TOP_MAX, &r->n_top, NAME, err);
    bool wanted = false;
    int64_t top = 0;
    AG_TRY(ag_json_get_bool(r->root, "logprobs", &wanted, NAME, err));
    AG_TRY(ag_json_get_int(r->root, "top_logprobs", 0, CHAT_TOP_MAX, &top, NAME, err));
    if (top > 0 && !wanted) return ag_fail(err, AG_E_USAGE, "'top_logprobs' needs 'logprobs': true");
    if (wanted) r->n_top = top;
    return AG_OK;
}

static ag_status read_lengths(ag_api_request *r, ag_err *err)
{
    r->max_tokens = r->is_chat ? -1 : 16; /* OpenAI's defaults */
    r->n = 1;
    AG_TRY(ag_json_get_int(r->root, "max_tokens", 1, MAX_ANSWER, &r->max_tokens, NAME, err));
    if (r->is_chat) AG_TRY(ag_json_get_int(r->root, "max_completion_tokens", 1, MAX_ANSWER, &r->max_tokens, NAME, err));
    AG_TRY(ag_json_get_int(r->root, "n", 1, AG_API_MAX_CHOICES, &r->n, NAME, err));
    int64_t best_of = r->n;
    if (!r->is_chat) AG_TRY(ag_json_get_int(r->root, "best_of", 1, AG_API_MAX_CHOICES, &best_of, NAME, err));
    if (best_of != r->n) return ag_fail(err, AG_E_UNSUPPORTED, "'best_of' other than 'n' is not supported");
    if (value_of(r->root, "suffix")) return ag_fail(err, AG_E_UNSUPPORTED, "'suffix' is not supported: these models do not fill in");
    AG_TRY(ag_json_get_bool(r->root, "ignore_eos", &r->ignore_eos, NAME, err));
    return AG_OK;
}

static ag_status read_stream(ag_api_request *r, ag_err *err)
{
    AG_TRY(ag_json_get_bool(r->root, "stream", &r->stream, NAME, err));
    const json_t *options = value_of(r->root, "stream_options");
    if (!options) return AG_OK;
    if (!json_is_object(options)) return ag_fail(err, AG_E_FORMAT, "'stream_options' must be an object");
    if (!r->stream) return ag_fail(err, AG_E_USAGE, "'stream_options' needs 'stream': true");
    return ag_json_get_bool(options, "include_usage", &r->include_usage, "'stream_options'", err);
}

static ag_status read_format(ag_api_request *r, ag_err *err)
{
    const json_t *format = value_of(r->root, "response_format");
    if (!format) return AG_OK;
    if (!json_is_object(format)) return ag_fail(err, AG_E_FORMAT, "'response_format' must be an object");
    const char *type = NULL;
    AG_TRY(ag_json_get_string(format, "type", &type, "'response_format'", err));
    if (!type) return ag_fail(err, AG_E_FORMAT, "'response_format' needs a 'type': text, json_object or json_schema");
    if (strcmp(type, "text") == 0) return AG_OK;
    if (strcmp(type, "json_object") == 0) {
        r->format = AG_FORMAT_JSON_OBJECT;
        return AG_OK;
    }
    if (strcmp(type, "json_schema") != 0)
        return ag_fail(err, AG_E_UNSUPPORTED, "'response_format' has the type '%.32s'; there are text, json_object and json_schema", type);
    const json_t *holder = value_of(format, "json_schema");
    r->schema = json_is_object(holder) ? value_of(holder, "schema") : NULL;
    if (!r->schema) return ag_fail(err, AG_E_FORMAT, "'response_format' of type json_schema needs 'json_schema': {\"name\": …, \"schema\": {…}}");
    r->format = AG_FORMAT_JSON_SCHEMA;
    return AG_OK;
}

/* ---- conversations ---------------------------------------------------------------------------------------------------------------- */
/* Parts of type text become one text; others are refused. */
static ag_status flatten_content(json_t *message, size_t i, ag_err *err)
{
    const json_t *content = json_object_get(message, "content");
    if (!json_is_array(content)) {
        if (!content || json_is_null(content) || json_is_string(content)) return AG_OK;
        return ag_fail(err, AG_E_FORMAT, "message %zu: 'content' must be a text or a list of parts", i);
    }
    ag_str text = {0};
    ag_status status = AG_OK;
    for (size_t j = 0; j < json_array_size(content) && !status; j++) {
        const json_t *part = json_array_get(content, j);
        const char *type = json_string_value(json_object_get(part, "type"));
        const json_t *piece = json_object_get(part, "text");
        if (!type || strcmp(type, "text") != 0)
            status = ag_fail(err, AG_E_UNSUPPORTED, "message %zu: a part has the type '%.32s'; these models read text only", i, type ? type : "?");
        else if (!json_is_string(piece)) status = ag_fail(err, AG_E_FORMAT, "message %zu: a part of type text needs a 'text'", i);
        else ag_str_add_n(&text, json_string_value(piece), json_string_length(piece));
    }
    if (!status) json_object_set_new(message, "content", json_stringn(text.text ? text.text : "", text.n));
    ag_str_free(&text);
    return status;
}

/* Templates want the arguments of past calls as objects; the protocol has them as JSON texts. */
static void open_arguments(json_t *message)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *function = json_object_get(json_array_get(calls, i), "function");
        const json_t *arguments = json_object_get(function, "arguments");
        json_t *value;
        if (!json_is_string(arguments)) continue;
        if (ag_json_parse_exact(&value, json_string_value(arguments), json_string_length(arguments), "arguments", NULL) == AG_OK)
            json_object_set_new(function, "arguments", value);
    }
}

static ag_status read_messages(ag_api_request *r, ag_err *err)
{
    const json_t *messages = value_of(r->root, "messages");
    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return ag_fail(err, AG_E_FORMAT, "'messages' must be a list of at least one message {\"role\": …, \"content\": …}");
    if (json_array_size(messages) > AG_API_MAX_MESSAGES)
        return ag_fail(err, AG_E_USAGE, "'messages' has %zu messages; %d are taken at most", json_array_size(messages), AG_API_MAX_MESSAGES);
    r->messages = json_incref((json_t *)(uintptr_t)messages); /* the request is ours to change */
    for (size_t i = 0; i < json_array_size(messages); i++) {
        json_t *message = json_array_get(messages, i);
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!role) return ag_fail(err, AG_E_FORMAT, "message %zu must be an object with a 'role'", i);
        static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};
        size_t k = 0;
        while (k < N_OF(roles) && strcmp(roles[k], role) != 0) k++;
        if (k == N_OF(roles)) return ag_fail(err, AG_E_USAGE, "message %zu has the role '%.32s'; there are system, developer, user, assistant and tool", i, role);
        if (k == 1) json_object_set_new(message, "role", json_string("system"));
        AG_TRY(flatten_content(message, i, err));
        open_arguments(message);
        const json_t *content = json_object_get(message, "content");
        if ((!content || json_is_null(content)) && !(k == 3 && json_array_size(json_object_get(message, "tool_calls")) > 0))
            return ag_fail(err, AG_E_FORMAT, "message %zu has no 'content'", i);
        if (!content) json_object_set_new(message, "content", json_null());
    }
    return AG_OK;
}

static ag_status read_tool_choice(ag_api_request *r, ag_err *err)
{
    const json_t *choice = value_of(r->root, "tool_choice");
    if (!choice) return AG_OK;
    const char *word = json_string_value(choice);
    if (word && strcmp(word, "auto") == 0) return AG_OK;
    if (word && strcmp(word, "none") == 0) r->tool_choice = AG_TOOLS_OFF;
    else if (word && strcmp(word, "required") == 0) r->tool_choice = AG_TOOLS_REQUIRED;
    else {
        r->tool_choice = AG_TOOLS_NAMED;
        r->tool_name = json_string_value(json_object_get(json_object_get(choice, "function"), "name"));
        if (!r->tool_name)
            return ag_fail(err, AG_E_FORMAT, "'tool_choice' must be auto, none, required or {\"type\": \"function\", \"function\": {\"name\": …}}");
    }
    if (r->tool_choice != AG_TOOLS_OFF && !r->tools) return ag_fail(err, AG_E_USAGE, "'tool_choice' needs 'tools'");
    return AG_OK;
}

static ag_status read_tools(ag_api_request *r, ag_err *err)
{
    const json_t *tools = value_of(r->root, "tools");
    bool parallel = true;
    AG_TRY(ag_json_get_bool(r->root, "parallel_tool_calls", &parallel, NAME, err));
    if (tools && !json_is_array(tools)) return ag_fail(err, AG_E_FORMAT, "'tools' must be a list of functions");
    if (json_array_size(tools) > AG_API_MAX_TOOLS)
        return ag_fail(err, AG_E_USAGE, "'tools' has %zu functions; %d are taken at most", json_array_size(tools), AG_API_MAX_TOOLS);
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *tool = json_array_get(tools, i);
        const char *type = json_string_value(json_object_get(tool, "type"));
        if (type && strcmp(type, "function") != 0)
            return ag_fail(err, AG_E_UNSUPPORTED, "tool %zu has the type '%.32s'; there are functions only", i, type);
        if (!json_string_value(json_object_get(json_object_get(tool, "function"), "name")))
            return ag_fail(err, AG_E_FORMAT, "tool %zu must be {\"type\": \"function\", \"function\": {\"name\": …}}", i);
    }
    r->tools = json_array_size(tools) > 0 ? tools : NULL;
    AG_TRY(read_tool_choice(r, err));
    bool found = r->tool_choice != AG_TOOLS_NAMED;
    for (size_t i = 0; i < json_array_size(tools) && !found; i++)
        found = strcmp(json_string_value(json_object_get(json_object_get(json_array_get(tools, i), "function"), "name")), r->tool_name) == 0;
    if (!found) return ag_fail(err, AG_E_USAGE, "'tool_choice' names the function '%.64s', which is not among 'tools'", r->tool_name);
    if (r->tool_choice == AG_TOOLS_OFF) r->tools = NULL;
    if (r->tools && r->format != AG_FORMAT_TEXT)
        return ag_fail(err, AG_E_UNSUPPORTED, "'tools' and a 'response_format' other than text cannot both shape one answer");
    r->template_values = value_of(r->root, "chat_template_kwargs");
    if (r->template_values && !json_is_object(r->template_values)) return ag_fail(err, AG_E_FORMAT, "'chat_template_kwargs' must be an object");
    return AG_OK;
}

/* ---- completions ------------------------------------------------------------------------------------------------------------------ */
static bool is_prompt(const json_t *value) { return json_is_string(value) || (json_is_array(value) && json_is_integer(json_array_get(value, 0))); }

static ag_status read_prompts(ag_api_request *r, ag_err *err)
{
    const json_t *prompt = value_of(r->root, "prompt");
    const bool is_list = json_is_array(prompt) && !is_prompt(prompt);
    const size_t n = is_list ? json_array_size(prompt) : 1;
    if (n > AG_API_MAX_PROMPTS || n == 0)
        return ag_fail(err, AG_E_USAGE, "'prompt' has %zu prompts; 1 to %d are taken", n, AG_API_MAX_PROMPTS);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = is_list ? json_array_get(prompt, i) : prompt;
        if (!is_prompt(one)) return ag_fail(err, AG_E_FORMAT, "'prompt' must be a text, a list of token ids, or a list of such");
        for (size_t j = 0; json_is_array(one) && j < json_array_size(one); j++) {
            const json_t *id = json_array_get(one, j);
            if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
                return ag_fail(err, AG_E_FORMAT, "'prompt' has a token id that is no id");
        }
        r->prompts[r->n_prompts++] = one;
    }
    AG_TRY(ag_json_get_bool(r->root, "echo", &r->echo, NAME, err));
    if (r->echo && r->n_top >= 0) return ag_fail(err, AG_E_UNSUPPORTED, "'echo' with 'logprobs' is not supported; `agoge score` gives the prompt's");
    return AG_OK;
}

ag_status ag_api_request_parse(ag_api_request *r, bool is_chat, const char *body, size_t n, ag_err *err)
{
    *r = (ag_api_request){.is_chat = is_chat};
    AG_TRY(ag_json_parse_exact(&r->root, body, n, NAME, err));
    if (!json_is_object(r->root)) return ag_fail(err, AG_E_FORMAT, "the request must be a JSON object");
    AG_TRY(check_keys(r->root, is_chat, err));
    AG_TRY(ag_json_get_string(r->root, "model", &r->model, NAME, err));
    AG_TRY(read_lengths(r, err));
    AG_TRY(read_stream(r, err));
    AG_TRY(read_logprobs(r, err));
    AG_TRY(read_sampling(r, err));
    AG_TRY(read_biases(r, err));
    AG_TRY(read_stops(r, err));
    AG_TRY(read_format(r, err));
    if (!is_chat) return read_prompts(r, err);
    AG_TRY(read_messages(r, err));
    return read_tools(r, err);
}

void ag_api_request_free(ag_api_request *r)
{
    json_decref(r->messages);
    r->messages = NULL;
    ag_json_free(&r->root);
    ag_arena_free(&r->arena);
}
