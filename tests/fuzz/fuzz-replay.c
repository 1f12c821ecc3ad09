/* Stands in for libFuzzer where it is not built in: runs a fuzz target on every file of the folders it is given, as it
 * is and repeated up to 64 KiB, and says how long the slowest took. One that is too slow (fuzz-time.h) ends it. */
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include "common/util.h"
#include "tests/fuzz/fuzz-time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define LONG_BYTES ((size_t)64 << 10)

static uint64_t slowest_ns;

static void run(const uint8_t *data, size_t size)
{
        uint64_t start_ns, took_ns;

        do {
                start_ns = fuzz_now_ns();
                (void)LLVMFuzzerTestOneInput(data, size);
                took_ns = fuzz_took_ns(start_ns);
        } while (size <= LONG_BYTES && fuzz_again(start_ns));
        slowest_ns = TDM_MAX(slowest_ns, took_ns);
}

static int run_file(int dir, const char *name)
{
        _cleanup_(closep) int fd = openat(dir, name, O_RDONLY | O_CLOEXEC);
        _cleanup_(freep) uint8_t *data = NULL, *repeated = NULL;
        struct stat st;
        size_t size;

        if (fd < 0 || fstat(fd, &st) < 0)
                return -errno;
        if (!S_ISREG(st.st_mode))
                return 0;
        size = (size_t)st.st_size;
        data = malloc(TDM_MAX(size, (size_t)1)); /* exactly: so that a sanitizer sees what is read past its end */
        if (!data)
                return -ENOMEM;
        if (read(fd, data, size) != st.st_size)
                return -EIO;
        run(data, size);
        if (size == 0 || size >= LONG_BYTES)
                return 1;
        repeated = malloc(LONG_BYTES);
        if (!repeated)
                return -ENOMEM;
        for (size_t at = 0; at < LONG_BYTES; at++)
                repeated[at] = data[at % size];
        run(repeated, LONG_BYTES);
        return 1;
}

int main(int argc, char **argv)
{
        unsigned n = 0;

        for (int i = 1; i < argc; i++) {
                DIR *dir = opendir(argv[i]);

                if (!dir) {
                        fprintf(stderr, "cannot open %s: %s\n", argv[i], strerror(errno));
                        return 1;
                }
                for (struct dirent *entry; (entry = readdir(dir));) {
                        int r = run_file(dirfd(dir), entry->d_name);

                        if (r < 0) {
                                fprintf(stderr, "cannot run %s/%s: %s\n", argv[i], entry->d_name, strerror(-r));
                                return 1;
                        }
                        n += (unsigned)r;
                }
                closedir(dir);
        }
        printf("%u inputs, the slowest %.2f ms\n", n, (double)slowest_ns / 1e6);
        return n > 0 ? 0 : 1;
}
