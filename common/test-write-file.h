/* For programs of the build and of tests that fill a directory. */
#ifndef TDM_COMMON_TEST_WRITE_FILE_H
#define TDM_COMMON_TEST_WRITE_FILE_H

#include <stdio.h>
#include <stdlib.h>

/* Ends the program, with words, where the file cannot be written. */
static void test_write_file(const char *directory, const char *name, const void *data, size_t size_bytes)
{
        char path[4096];
        FILE *f;

        snprintf(path, sizeof(path), "%s/%s", directory, name);
        f = fopen(path, "we");
        if (!f || fwrite(data, 1, size_bytes, f) != size_bytes || fclose(f) != 0) {
                perror(path);
                exit(1);
        }
}

#endif
