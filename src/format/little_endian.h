/* Numbers of `n` bytes, least significant first, at any address. */
#ifndef AG_LITTLE_ENDIAN_H
#define AG_LITTLE_ENDIAN_H

#include <stdint.h>

static inline uint64_t ag_little_read(const unsigned char *at, int n)
{
    uint64_t value = 0;
    for (int i = n - 1; i >= 0; i--) value = value << 8 | at[i];
    return value;
}

static inline void ag_little_write(unsigned char *at, uint64_t value, int n)
{
    for (int i = 0; i < n; i++) at[i] = (unsigned char)(value >> 8 * i);
}

#endif
