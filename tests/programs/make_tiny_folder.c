/* make_tiny_folder DIR: writes the tests' tiny model (DIR/model) and its rows (DIR/rows.jsonl), for runs of the program by hand. */
#include "support/op_check.h"
#include "support/tiny_folder.h"

#include <stdio.h>

static const char *dir;

static void the_folder_is_written(void **state)
{
    (void)state;
    tiny_folder_make(dir);
}

/* As a test, so that what goes wrong is told as in one. */
int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: make_tiny_folder DIR\n");
        return 2;
    }
    dir = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_folder_is_written)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
