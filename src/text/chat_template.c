#include "text/chat_template.h"

ag_status ag_chat_template_compile(ag_chat_template **out, const char *source, size_t n, const char *name, ag_err *err)
{
    (void)source;
    (void)n;
    *out = NULL;
    return ag_fail(err, AG_E_UNSUPPORTED, "%s: chat templates are not read by this version; give rows of text", name);
}

void ag_chat_template_free(ag_chat_template **t) { *t = NULL; }

bool ag_chat_template_has_generation(const ag_chat_template *t) { return t != NULL; }

ag_status ag_chat_template_render(const ag_chat_template *t, const ag_chat_render_args *args, ag_str *out, ag_chat_marks *marks, ag_err *err)
{
    (void)t;
    (void)args;
    (void)out;
    (void)marks;
    return ag_fail(err, AG_E_UNSUPPORTED, "chat templates are not read by this version");
}
