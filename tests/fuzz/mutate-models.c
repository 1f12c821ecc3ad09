/* Model files with a few wrong bytes. Each is opened, described, tokenized with and packed as tandemd does it, and what
 * was packed is checked as a worker does it: every refusal is an error with a message. Built with a sanitizer, it also
 * shows that nothing is read beside the file.
 *
 * FILE may be the parts of one model, with commas between: one or two of them are changed, or lie in the wrong order.
 *
 * usage: mutate-models N SEED FILE... */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/mman.h>
#include "common/sigbus.h"
#include "engine/weights/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size); /* fuzz-gguf.c: up to the tokenizer */

#define PACKED_MAX (UINT64_C(64) << 20)
#define PARTS_MAX 8u

struct part {
        uint8_t *whole, *data; /* as the file is, and as it was changed */
        size_t size, cut, metadata;
        int fd;
};

static uint64_t state;

static uint64_t draw(void) /* xorshift64* */
{
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        return state * UINT64_C(2685821657736338717);
}

/* Bytes of metadata, which most of the changes are in. */
static size_t metadata_bytes(const struct tdm_gguf *g, size_t size)
{
        size_t first = size;

        for (uint64_t i = 0; i < tdm_gguf_n_tensors(g); i++)
                first = TDM_MIN(first, (size_t)tdm_gguf_tensor(g, i)->offset);
        return first;
}

static size_t mutate(uint8_t *data, size_t size, size_t metadata)
{
        static const uint64_t odd[] = { 0,
                                        1,
                                        2,
                                        3,
                                        31,
                                        32,
                                        33,
                                        255,
                                        256,
                                        4096,
                                        65536,
                                        65537,
                                        1u << 20,
                                        0x7fffffff,
                                        0x80000000,
                                        UINT32_MAX,
                                        UINT64_C(1) << 32,
                                        INT64_MAX,
                                        UINT64_MAX };
        unsigned n = 1 + (unsigned)(draw() % 4);

        for (unsigned i = 0; i < n; i++) {
                size_t in = draw() % 8 ? metadata : size, at = draw() % in, bytes = (size_t)1 << draw() % 4, from;
                uint64_t value = draw() % 2 ? odd[draw() % TDM_ARRAY_SIZE(odd)] : draw();

                bytes = TDM_MIN(bytes, in - at);
                switch (draw() % 4) {
                case 0:
                        data[at] ^= (uint8_t)(1u << draw() % 8);
                        break;
                case 1:
                case 2:
                        memcpy(data + at, &value, bytes);
                        break;
                default:
                        from = draw() % in;
                        memmove(data + at, data + from, TDM_MIN(TDM_MIN(in - at, in - from), (size_t)(draw() % 64)));
                }
        }
        return draw() % 16 ? size : draw() % size;
}

/* Opens the parts and makes them one. NULL: refused. */
static struct tdm_gguf *open_model(const struct part *parts, unsigned n)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *first = NULL;
        struct tdm_gguf *others[PARTS_MAX] = { 0 };
        struct tdm_error err = { 0 };
        int r = 0;

        for (unsigned i = 0; i < n && r == 0; i++) {
                const struct part *p = &parts[i];

                assert(ftruncate(p->fd, (off_t)p->cut) == 0);
                assert(pwrite(p->fd, p->data, p->cut, 0) == (ssize_t)p->cut);
                r = tdm_gguf_open_within(i == 0 ? &first : &others[i - 1], p->fd, "mutated", NULL, &err);
        }
        if (r == 0 && n > 1)
                r = tdm_gguf_join(first, others, n - 1, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        for (unsigned i = 0; r != 0 && i + 1 < n; i++)
                tdm_gguf_close(others[i]);
        return r == 0 ? steal_ptr(&first) : NULL;
}

static bool pack(const struct part *parts, unsigned n)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = open_model(parts, n);
        _cleanup_(tdm_weights_plan_destroyp) struct tdm_weights_plan *plan = NULL;
        struct tdm_model_description d;
        struct tdm_error err = { 0 };
        uint8_t *to = NULL;
        int r;

        if (!g)
                return false;
        r = tdm_model_describe(g, &d, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        if (r != 0)
                return false;
        r = tdm_weights_plan_new(&plan, &d, &err);
        if (r == 0 && tdm_weights_plan_size(plan) <= PACKED_MAX) {
                to = aligned_alloc(4096, TDM_ALIGN_UP(tdm_weights_plan_size(plan), UINT64_C(4096)));
                assert(to);
                r = tdm_weights_build(plan, g, to, 1, NULL, NULL, &err);
                if (r == 0)
                        r = tdm_weights_check(to, tdm_weights_plan_size(plan), tdm_weights_plan_size(plan), &err);
                assert(r != TDM_E_PROTOCOL);
        }
        assert(r == 0 || (r == err.code && err.message[0]));
        free(to);
        tdm_model_description_deinit(&d);
        return r == 0;
}

static uint8_t *read_file(const char *path, size_t *ret_size)
{
        FILE *f = fopen(path, "rbe");
        uint8_t *data;
        long size;

        if (!f || fseek(f, 0, SEEK_END) != 0 || (size = ftell(f)) <= 0 || fseek(f, 0, SEEK_SET) != 0) {
                perror(path);
                exit(2);
        }
        data = malloc((size_t)size);
        assert(data && fread(data, 1, (size_t)size, f) == (size_t)size);
        fclose(f);
        *ret_size = (size_t)size;
        return data;
}

static bool read_part(struct part *p, const char *path)
{
        _cleanup_(tdm_gguf_closep) struct tdm_gguf *g = NULL;
        struct tdm_error err;

        p->whole = read_file(path, &p->size);
        p->cut = p->size;
        p->data = malloc(p->size);
        p->fd = memfd_create("mutated", MFD_CLOEXEC);
        assert(p->data && p->fd >= 0 && pwrite(p->fd, p->whole, p->size, 0) == (ssize_t)p->size);
        memcpy(p->data, p->whole, p->size);
        if (tdm_gguf_open_within(&g, p->fd, path, NULL, &err) != 0) {
                fprintf(stderr, "%s\n", err.message);
                return false;
        }
        p->metadata = metadata_bytes(g, p->size);
        return true;
}

/* Puts a part back and changes it again. */
static void change(struct part *p)
{
        memcpy(p->data, p->whole, p->size);
        p->cut = mutate(p->data, p->size, p->metadata);
        LLVMFuzzerTestOneInput(p->data, p->cut);
}

static bool one_changed(struct part *parts, unsigned n)
{
        unsigned first = (unsigned)(draw() % n), second = draw() % 4 ? first : (unsigned)(draw() % n);
        struct part order[PARTS_MAX];

        change(&parts[first]);
        if (second != first)
                change(&parts[second]);
        memcpy(order, parts, n * sizeof(*parts));
        if (n > 1 && draw() % 16 == 0) {
                order[first] = parts[(first + 1) % n];
                order[(first + 1) % n] = parts[first];
        }
        return pack(order, n);
}

static bool mutate_model(char *names, unsigned long n_files)
{
        struct part parts[PARTS_MAX];
        unsigned long n_whole = 0;
        unsigned n = 0;
        char *rest = names, *path;

        while ((path = strsep(&rest, ",")) && n < PARTS_MAX)
                if (!read_part(&parts[n++], path))
                        return false;
        if (!pack(parts, n)) {
                fprintf(stderr, "%s: is refused as it is\n", names);
                return false;
        }
        for (unsigned long k = 0; k < n_files; k++) {
                n_whole += one_changed(parts, n);
                for (unsigned i = 0; i < n; i++) {
                        memcpy(parts[i].data, parts[i].whole, parts[i].size);
                        parts[i].cut = parts[i].size;
                }
        }
        printf("%s: %lu files of %u part%s, of which %lu are models still\n", names, n_files, n, n == 1 ? "" : "s",
               n_whole);
        fflush(stdout);
        for (unsigned i = 0; i < n; i++) {
                close(parts[i].fd);
                free(parts[i].whole);
                free(parts[i].data);
        }
        return true;
}

int main(int argc, char **argv)
{
        unsigned long n = argc > 3 ? strtoul(argv[1], NULL, 10) : 0;

        if (n == 0) {
                fprintf(stderr, "usage: %s N SEED FILE...\n", argv[0]);
                return 2;
        }
        if (tdm_sigbus_init() < 0)
                return 2;
        for (int i = 3; i < argc; i++) {
                state = strtoul(argv[2], NULL, 10) * 2654435761u + 1;
                if (!mutate_model(argv[i], n))
                        return 1;
        }
        return 0;
}
