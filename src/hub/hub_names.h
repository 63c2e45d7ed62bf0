/* Names of the hub: what is one, what may become a path of ours, what matches a pattern.
 *
 * Everything that a server says becomes a path or an address only after one of these checks. */
#ifndef AG_HUB_NAMES_H
#define AG_HUB_NAMES_H

#include "base/status.h"
#include "base/str.h"

#include <stdbool.h>
#include <stddef.h>

enum { AG_HUB_COMMIT_DIGITS = 40, AG_HUB_MAX_FILE_NAME = 1024 };

/* "org/name" as huggingface_hub has it: two parts of 1 to 96 of A-Z a-z 0-9 . _ -, none beginning or ending in . or -, no "--" and
 * no ".." anywhere, no ".git" at the end. (A name without an organisation is one for the hub, but no one can tell it from a path.) */
bool ag_hub_is_id(const char *text);
AG_MUST_USE ag_status ag_hub_id_check(const char *text, ag_err *err);
/* 40 lowercase hexadecimal digits: a commit, which never changes. */
bool ag_hub_is_commit(const char *text);
/* A branch, a tag or a commit: parts between '/' as git allows them, at most 255 bytes; never a way out of a folder. */
AG_MUST_USE ag_status ag_hub_revision_check(const char *revision, ag_err *err);
/* A file's name inside a repository: relative, parts of 1 to 255 bytes, none "." or "..", valid UTF-8 without control characters and
 * backslashes. */
AG_MUST_USE ag_status ag_hub_file_check(const char *name, ag_err *err);
/* What names a blob: 40 (git's id) or 64 (SHA-256) lowercase hexadecimal digits. */
bool ag_hub_is_blob_name(const char *text);

/* Percent-encoded onto an address; '/' stays where keep_slash. */
void ag_hub_url_add(ag_str *url, const char *text, bool keep_slash);
/* Python's fnmatchcase, which huggingface_hub's patterns are: '*' (slashes, too), '?', '[abc]', '[a-z]', '[!x]'; a pattern that ends
 * in '/' means everything below. Takes time in the product of the lengths at most. */
bool ag_hub_glob_match(const char *pattern, const char *text);
/* Whether a pattern has any of those signs in it; one that has none names one file. */
bool ag_hub_is_glob(const char *pattern);

#endif
