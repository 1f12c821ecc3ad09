/* Which model it is, for what is kept on disk beyond its time in memory.
 *
 * Reading a large model whole takes seconds, so the digest takes the beginning of the packed weights, which has the
 * recipe and the tensors' names and places, and a few bytes of every page behind it, however many files there are. With
 * them go size and time of each file: who changes a file in place and then sets its time back may be missed. */
#include "daemon/models/load.h"

#define WHOLE_BYTES (UINT64_C(1) << 20)
#define SAMPLE_BYTES 64u
#define STRIDE_BYTES UINT64_C(4096)
#define MOST_SAMPLES UINT64_C(0x40000)

static void digest_file(struct tdm_siphash *hash, const struct tdm_file_identity *identity)
{
        tdm_siphash_add(hash, &identity->size_bytes, sizeof(identity->size_bytes));
        tdm_siphash_add(hash, &identity->mtime_ns, sizeof(identity->mtime_ns));
}

void tdm_model_digest(const struct tdm_model *model, uint8_t ret[TDM_SIPHASH_BYTES])
{
        static const uint8_t no_secret[TDM_SIPHASH_KEY_BYTES];
        const struct tdm_model_parts *parts = model->metadata->parts;
        const struct tdm_segment *weights = model->weights;
        uint64_t size = weights->size_bytes, stride = TDM_ALIGN_UP(size / MOST_SAMPLES, STRIDE_BYTES);
        struct tdm_siphash hash;

        tdm_siphash_init(&hash, no_secret);
        digest_file(&hash, &model->identity);
        for (uint32_t i = 0; parts && i < parts->n; i++)
                digest_file(&hash, &parts->files[i].identity);
        tdm_siphash_add(&hash, &size, sizeof(size));
        tdm_siphash_add(&hash, weights->base, TDM_MIN(size, WHOLE_BYTES));
        for (uint64_t at = WHOLE_BYTES; at + SAMPLE_BYTES <= size; at += TDM_MAX(stride, STRIDE_BYTES))
                tdm_siphash_add(&hash, weights->base + at, SAMPLE_BYTES);
        tdm_siphash_end(&hash, ret);
}
