/* What every unit test includes: cmocka with the headers it wants before itself. */
#ifndef AG_TEST_UNIT_TEST_H
#define AG_TEST_UNIT_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

/* A call that must succeed, or the test fails with its sentence; needs `ag_err err` in scope. */
#define must(call)                                      \
    do {                                                 \
        if (call) fail_msg("%s: %s", #call, err.text);   \
    } while (0)

/* A call that must fail with this code, and with a sentence that holds `part`. */
#define must_fail(code_, part, call)                                                                 \
    do {                                                                                             \
        err.text[0] = 0;                                                                             \
        assert_int_equal(code_, call);                                                               \
        assert_int_equal(code_, err.code);                                                           \
        if (!strstr(err.text, part)) fail_msg("\"%s\" does not say \"%s\"", err.text, part);         \
    } while (0)

#endif
