/* Who may talk to a server: checks of addresses, Host, Origin and keys, without any state. */
#ifndef AG_HTTP_GUARD_H
#define AG_HTTP_GUARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sockaddr;
bool ag_http_address_is_loopback(const struct sockaddr *address);

/* Host is localhost, *.localhost, 127.x.y.z or [::1], with any port. NULL (HTTP/1.0) is fine: browsers always send one. */
bool ag_http_host_is_loopback(const char *host);
/* No Origin (no browser, or a page that was typed in), that of Host itself, or the one that `allowed` names ("*": any). */
bool ag_http_origin_is_fine(const char *origin, const char *host, const char *allowed);

/* Keys are compared as digests, in a time that does not depend on where they differ. */
enum { AG_HTTP_KEY_DIGEST = 32 };
void ag_http_key_digest(unsigned char out[AG_HTTP_KEY_DIGEST], const char *key, size_t n);
/* `authorization` is the header "Bearer KEY", or NULL. */
bool ag_http_key_is_known(const char *authorization, const unsigned char (*known)[AG_HTTP_KEY_DIGEST], size_t n_known);

void ag_http_format_int(char *out, size_t n, int64_t value);

#endif
