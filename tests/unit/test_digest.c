#include "support/scratch_dir.h"
#include "support/unit_test.h"

#include "base/digest.h"
#include "base/fs.h"

/* FIPS 180-4 examples */
static const char *const of_abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
static const char *const of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
static const char *const of_million_a = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";

static void digests_of_bytes_are_the_known_ones(void **state)
{
    (void)state;
    assert_string_equal(of_abc, ag_sha256_bytes("abc", 3).hex);
    assert_string_equal(of_nothing, ag_sha256_bytes("", 0).hex);
}

static void digests_in_pieces_and_of_files_agree(void **state)
{
    (void)state;
    ag_err err;
    ag_sha256 digest;
    char block[1000];
    memset(block, 'a', sizeof block);
    ag_sha256_state *sha = ag_sha256_begin();
    ag_file_writer w;
    scratch_dir_create();
    must(ag_file_begin(&w, scratch_path("a"), &err));
    for (int i = 0; i < 1000; i++) {
        ag_sha256_add(sha, block, sizeof block);
        must(ag_file_write(&w, block, sizeof block, &err));
    }
    must(ag_file_commit(&w, &err));
    assert_string_equal(of_million_a, ag_sha256_end(sha).hex);
    must(ag_sha256_file(&digest, scratch_path("a"), &err));
    assert_string_equal(of_million_a, digest.hex);
    char *large = calloc(1, 3 << 20); /* several blocks */
    assert_non_null(large);
    must(ag_file_publish(scratch_path("large"), large, 3 << 20, &err));
    must(ag_sha256_file(&digest, scratch_path("large"), &err));
    assert_string_equal(ag_sha256_bytes(large, 3 << 20).hex, digest.hex);
    free(large);
    must_fail(AG_E_NOT_FOUND, "missing", ag_sha256_file(&digest, scratch_path("missing"), &err));
    must_fail(AG_E_IO, "not a regular file", ag_sha256_file(&digest, scratch_path("."), &err));
    scratch_dir_remove();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(digests_of_bytes_are_the_known_ones),
        cmocka_unit_test(digests_in_pieces_and_of_files_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
