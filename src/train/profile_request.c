#define _GNU_SOURCE
#include "train/profile_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_TEXT = 512 };
typedef enum { PHASE, START, END, BACKEND, ENABLED, N_FIELDS } field;

static const struct {
    const char *name;
    field field;
} names[] = {{"phase", PHASE},     {"start_step", START}, {"start", START}, {"from", START}, {"end_step", END},
             {"end", END},         {"to", END},           {"backend", BACKEND}, {"enabled", ENABLED}};

static char *trim(char *text)
{
    text += strspn(text, " \t\n\r");
    size_t n = strlen(text);
    while (n > 0 && strchr(" \t\n\r", text[n - 1])) text[--n] = 0;
    return text;
}

static ag_status parse_step(int64_t *out, const char *text, const char *what, const char *where, ag_err *err)
{
    char *end;
    errno = 0;
    const long long value = strtoll(text, &end, 10);
    if (end == text || *end || errno || strspn(text, "+-0123456789") != strlen(text))
        return ag_fail(err, AG_E_CONFIG, "%s: the %s step '%.60s' is no integer; write for example train:1-2", where, what, text);
    if (value < 1 || value > 1000000000)
        return ag_fail(err, AG_E_CONFIG, "%s: the %s step is %lld; steps count from 1", where, what, value);
    *out = value;
    return AG_OK;
}

static ag_status check(const ag_profile_request *r, const char *phase, const char *where, ag_err *err)
{
    if (strcmp(phase, "train") != 0)
        return ag_fail(err, AG_E_CONFIG, "%s: the phase is '%.60s'; only 'train' can be profiled, as in train:1-2", where, phase);
    if (r->end_step < r->start_step)
        return ag_fail(err, AG_E_CONFIG, "%s: the window ends at step %lld, before it starts at %lld; turn them round", where,
                       (long long)r->end_step, (long long)r->start_step);
    return AG_OK;
}

static ag_status parse_compact(ag_profile_request *out, char *text, const char *where, ag_err *err)
{
    char *steps = text + strcspn(text, ":/");
    if (!*steps)
        return ag_fail(err, AG_E_CONFIG, "%s: '%.60s' has no steps; write for example train:1-2 or phase=train,start_step=1,end_step=2",
                       where, text);
    *steps++ = 0;
    char *dots = strstr(steps, ".."), *end = dots ? dots : steps + strcspn(steps, "-:");
    if (!*end) return ag_fail(err, AG_E_CONFIG, "%s: '%.60s' names no last step; write for example train:1-2", where, steps);
    *end = 0;
    end += dots ? 2 : 1;
    AG_TRY(parse_step(&out->start_step, trim(steps), "first", where, err));
    AG_TRY(parse_step(&out->end_step, trim(end), "last", where, err));
    return check(out, trim(text), where, err);
}

static ag_status read_field(char *values[N_FIELDS], char *part, const char *where, ag_err *err)
{
    char *value = strchr(part, '=');
    if (!value) return ag_fail(err, AG_E_CONFIG, "%s: '%.60s' is no key=value", where, part);
    *value++ = 0;
    const char *key = trim(part);
    value = trim(value);
    size_t i = 0;
    while (i < sizeof names / sizeof *names && strcmp(names[i].name, key) != 0) i++;
    if (i == sizeof names / sizeof *names)
        return ag_fail(err, AG_E_CONFIG, "%s: there is no field '%.60s'; there are phase, start_step, end_step, backend and enabled",
                       where, key);
    if (!*value) return ag_fail(err, AG_E_CONFIG, "%s: the field '%s' is empty; give it a value or leave it out", where, key);
    if (values[names[i].field]) return ag_fail(err, AG_E_CONFIG, "%s: the field '%s' stands there twice", where, key);
    values[names[i].field] = value;
    return AG_OK;
}

static ag_status parse_keys(ag_profile_request *out, char *text, const char *where, ag_err *err)
{
    char *values[N_FIELDS] = {NULL}, *rest = text;
    for (char *part; (part = strsep(&rest, ","));) AG_TRY(read_field(values, part, where, err));
    out->start_step = 1;
    if (values[START]) AG_TRY(parse_step(&out->start_step, values[START], "first", where, err));
    out->end_step = out->start_step;
    if (values[END]) AG_TRY(parse_step(&out->end_step, values[END], "last", where, err));
    if (values[BACKEND] && strlen(values[BACKEND]) >= sizeof out->backend)
        return ag_fail(err, AG_E_CONFIG, "%s: the backend's name has more than %zu characters", where, sizeof out->backend - 1);
    if (values[BACKEND]) strcpy(out->backend, values[BACKEND]);
    if (values[ENABLED]) {
        out->enabled = strcasecmp(values[ENABLED], "true") == 0;
        if (!out->enabled && strcasecmp(values[ENABLED], "false") != 0)
            return ag_fail(err, AG_E_CONFIG, "%s: 'enabled' must be true or false, found '%.60s'", where, values[ENABLED]);
    }
    return check(out, values[PHASE] ? values[PHASE] : "train", where, err);
}

ag_status ag_profile_request_parse(ag_profile_request *out, const char *text, const char *where, ag_err *err)
{
    char copy[MAX_TEXT];
    *out = (ag_profile_request){.enabled = true, .backend = "torch"};
    if (strlen(text) >= sizeof copy)
        return ag_fail(err, AG_E_CONFIG, "%s: has more than %d characters; write for example train:1-2", where, MAX_TEXT - 1);
    strcpy(copy, text);
    return strchr(copy, '=') ? parse_keys(out, copy, where, err) : parse_compact(out, copy, where, err);
}

void ag_profile_window_id(char out[AG_PROFILE_ID_MAX], const char *run_id, int64_t start_step, int64_t end_step)
{
    snprintf(out, AG_PROFILE_ID_MAX, "%s:train:%lld-%lld", run_id, (long long)start_step, (long long)end_step);
}
