/* A folder with a tiny random Llama (bf16, 384 words), its tokenizer and a dataset, for tests that run the program itself. */
#ifndef AG_TEST_TINY_FOLDER_H
#define AG_TEST_TINY_FOLDER_H

/* Makes dir/model and dir/rows.jsonl (17 rows of text of different lengths). */
void tiny_folder_make(const char *dir);
/* The same with widths that a GPU's kernels take. */
void tiny_folder_make_wide(const char *dir);
/* The same as a Qwen3, whose heads have norms. */
void tiny_folder_make_wide_qwen3(const char *dir);

#endif
