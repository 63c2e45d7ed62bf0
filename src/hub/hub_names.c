#include "hub/hub_names.h"

#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static bool is_id_char(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' || c == '.'; }

static bool is_end_of_word(char c) { return c == '-' || c == '.'; }

static bool is_id_part(const char *text, size_t n)
{
    enum { LONGEST_PART = 96 };
    if (n == 0 || n > LONGEST_PART || is_end_of_word(text[0]) || is_end_of_word(text[n - 1])) return false;
    for (size_t i = 0; i < n; i++)
        if (!is_id_char(text[i])) return false;
    return true;
}

bool ag_hub_is_id(const char *text)
{
    const char *slash = strchr(text, '/');
    return slash && is_id_part(text, (size_t)(slash - text)) && is_id_part(slash + 1, strlen(slash + 1)) && !strstr(text, "--") &&
           !strstr(text, "..") && !ag_str_ends(text, ".git");
}

ag_status ag_hub_id_check(const char *text, ag_err *err)
{
    if (ag_hub_is_id(text)) return AG_OK;
    return ag_fail(err, AG_E_USAGE, "'%s' is no name of a repository; it must be org/name, of letters, digits, '.', '_' and '-', without '--' "
                   "and '..'", text);
}

static bool is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!is_digit(text[i]) && !(text[i] >= 'a' && text[i] <= 'f')) return false;
    return text[n] == 0;
}

bool ag_hub_is_commit(const char *text) { return strlen(text) == AG_HUB_COMMIT_DIGITS && is_hex(text, AG_HUB_COMMIT_DIGITS); }

bool ag_hub_is_blob_name(const char *text)
{
    const size_t n = strlen(text);
    return (n == 40 || n == 64) && is_hex(text, n);
}

/* Parts between slashes, none empty, "." or "..", each of at most 255 bytes. */
static bool has_safe_parts(const char *text)
{
    enum { LONGEST_PART = 255 };
    for (const char *part = text;;) {
        const size_t n = strcspn(part, "/");
        if (n == 0 || n > LONGEST_PART || (n == 1 && part[0] == '.') || (n == 2 && part[0] == '.' && part[1] == '.')) return false;
        if (!part[n]) return true;
        part += n + 1;
    }
}

ag_status ag_hub_revision_check(const char *revision, ag_err *err)
{
    enum { LONGEST = 255 };
    bool is_good = strlen(revision) <= LONGEST && has_safe_parts(revision) && !strstr(revision, "..") && revision[0] != '-';
    for (const char *c = revision; *c && is_good; c++) is_good = (unsigned char)*c > ' ' && *c != 0x7f && !strchr("~^:?*[\\", *c);
    if (is_good) return AG_OK;
    return ag_fail(err, AG_E_USAGE, "'%s' is no revision; it must be a branch, a tag or a commit of 40 hexadecimal digits", revision);
}

ag_status ag_hub_file_check(const char *name, ag_err *err)
{
    const size_t n = strlen(name);
    bool is_good = n <= AG_HUB_MAX_FILE_NAME && has_safe_parts(name) && ag_utf8_valid(name, n);
    for (size_t i = 0; i < n && is_good; i++) is_good = (unsigned char)name[i] >= ' ' && name[i] != 0x7f && name[i] != '\\';
    if (is_good) return AG_OK;
    /* The name is not printed: it may hold what terminals obey. */
    return ag_fail(err, AG_E_FORMAT, "the server lists a file whose name could lead out of its folder or is no name (%zu bytes); nothing of this "
                   "repository is fetched", n);
}

void ag_hub_url_add(ag_str *url, const char *text, bool keep_slash)
{
    for (const char *c = text; *c; c++) {
        if (is_id_char(*c) || *c == '~' || (*c == '/' && keep_slash))
            ag_str_add_char(url, *c);
        else
            ag_str_printf(url, "%%%02X", (unsigned)(unsigned char)*c);
    }
}

bool ag_hub_is_glob(const char *pattern) { return pattern[strcspn(pattern, "*?[")] != 0 || ag_str_ends(pattern, "/"); }

/* One sign of the pattern against c; *next is behind it. A '[' without its ']' is itself. */
static bool matches_sign(const char *p, char c, const char **next)
{
    *next = p + 1;
    if (*p == '?') return true;
    if (*p != '[') return *p == c;
    const char *first = p + 1 + (p[1] == '!'), *close = *first ? strchr(first + 1, ']') : NULL; /* a ']' in first place is one of the set */
    if (!close) return c == '[';
    *next = close + 1;
    bool is_in = false;
    for (const char *s = first; s < close; s++) {
        if (s + 2 < close && s[1] == '-') {
            is_in |= (unsigned char)s[0] <= (unsigned char)c && (unsigned char)c <= (unsigned char)s[2];
            s += 2;
        } else {
            is_in |= *s == c;
        }
    }
    return is_in != (p[1] == '!');
}

static bool match(const char *p, const char *text, bool everything_below)
{
    const char *star = NULL, *resume = NULL; /* the last star, and where its share of the text ends: only that one is ever moved */
    for (;;) {
        const char *next;
        if (*p == '*') {
            star = ++p;
            resume = text;
        } else if (!*p && (!*text || everything_below)) {
            return true;
        } else if (*text && *p && matches_sign(p, *text, &next)) {
            p = next;
            text++;
        } else if (star && *resume) {
            p = star;
            text = ++resume;
        } else {
            return false;
        }
    }
}

bool ag_hub_glob_match(const char *pattern, const char *text) { return match(pattern, text, ag_str_ends(pattern, "/")); }
