#define _GNU_SOURCE
#include "serve/http_guard.h"

#include "base/str.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <netinet/in.h>
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

bool ag_http_address_is_loopback(const struct sockaddr *address)
{
    if (address->sa_family == AF_INET) return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
    if (address->sa_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
    return false;
}

bool ag_http_host_is_loopback(const char *host)
{
    if (!host) return true;
    char name[256];
    size_t n = strlen(host);
    if (n >= sizeof name) return false;
    memcpy(name, host, n + 1);
    if (name[0] == '[') {
        char *end = strchr(name, ']');
        if (!end) return false;
        *end = 0;
        struct in6_addr a;
        return inet_pton(AF_INET6, name + 1, &a) == 1 && IN6_IS_ADDR_LOOPBACK(&a);
    }
    char *port = strrchr(name, ':');
    if (port) *port = 0;
    n = strlen(name);
    if (n > 0 && name[n - 1] == '.') name[--n] = 0;
    if (strcasecmp(name, "localhost") == 0) return true;
    if (n > 10 && strcasecmp(name + n - 10, ".localhost") == 0) return true;
    struct in_addr a;
    return inet_pton(AF_INET, name, &a) == 1 && ntohl(a.s_addr) >> 24 == 127;
}

bool ag_http_origin_is_fine(const char *origin, const char *host, const char *allowed)
{
    if (!origin) return true;
    if (allowed && (strcmp(allowed, "*") == 0 || strcasecmp(allowed, origin) == 0)) return true;
    const char *name = ag_str_starts(origin, "http://") ? origin + 7 : ag_str_starts(origin, "https://") ? origin + 8 : NULL;
    return name && host && strcasecmp(name, host) == 0;
}

void ag_http_key_digest(unsigned char out[AG_HTTP_KEY_DIGEST], const char *key, size_t n) { SHA256((const unsigned char *)key, n, out); }

bool ag_http_key_is_known(const char *authorization, const unsigned char (*known)[AG_HTTP_KEY_DIGEST], size_t n_known)
{
    if (!authorization || strncasecmp(authorization, "Bearer ", 7) != 0) return false;
    const char *key = authorization + 7;
    while (*key == ' ') key++;
    unsigned char digest[AG_HTTP_KEY_DIGEST];
    ag_http_key_digest(digest, key, strlen(key));
    int found = 0;
    for (size_t i = 0; i < n_known; i++) found |= CRYPTO_memcmp(digest, known[i], sizeof digest) == 0;
    return found;
}

void ag_http_format_int(char *out, size_t n, int64_t value) { snprintf(out, n, "%lld", (long long)value); }
