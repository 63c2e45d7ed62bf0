/* cmocka with what it wants included first. */
#ifndef AG_TEST_CMOCKA_ALL_H
#define AG_TEST_CMOCKA_ALL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#endif
