/* fuzz-tokenizer.c with texts of 64 KiB. */
#define FUZZ_LONG 1
#include "tests/fuzz/fuzz-tokenizer.c"
