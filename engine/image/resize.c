/* The resampling of resize.h. Its weights are whole numbers, so a sum is exact in any order, and the same on every
 * machine. The doubles that the weights come from are made by the same operations as Pillow's, in the same order. */
#include "engine/image/resize.h"

#include <math.h>

#define WEIGHT_BITS 22
#define CHANNELS 3u

/* Which inputs make an output. */
struct taps {
        uint32_t first, n;
};

struct pass {
        uint32_t n_in, n_out, most; /* most: taps of an output */
        struct taps *taps;          /* [n_out] */
        int32_t *weights;           /* [n_out][most] */
};

struct tdm_resize {
        struct tdm_image_size from, to;
        struct pass across, down; /* taps NULL: the length stays */
        uint32_t next;            /* row of the result */
        uint32_t n_held;          /* rows of the first pass that have been made */
        uint8_t *held;            /* [down.most][to.width][3]: row y lies at y % down.most */
        size_t memory;
};

static double weight_bilinear(double x)
{
        x = fabs(x);
        return x < 1.0 ? 1.0 - x : 0.0;
}

static double weight_bicubic(double x)
{
        const double a = -0.5;

        x = fabs(x);
        if (x < 1.0)
                return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
        if (x < 2.0)
                return (((x - 5) * x + 8) * x - 4) * a;
        return 0.0;
}

/* The weights of one output: doubles first, then whole numbers. */
static void pass_output(struct pass *pass, uint32_t i, enum tdm_resize_filter filter, double *doubles)
{
        double scale = (double)pass->n_in / pass->n_out, widen = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / widen;
        double reach = (double)filter * widen, centre = (i + 0.5) * scale, sum = 0.0;
        double low = centre - reach + 0.5, high = centre + reach + 0.5;
        uint32_t first = low > 0 ? (uint32_t)low : 0, end = high < pass->n_in ? (uint32_t)high : pass->n_in;
        int32_t *weights = pass->weights + (size_t)i * pass->most;

        for (uint32_t j = first; j < end; j++) {
                double x = ((double)(j - first) + first - centre + 0.5) * inverse;

                doubles[j - first] = filter == TDM_RESIZE_BILINEAR ? weight_bilinear(x) : weight_bicubic(x);
                sum += doubles[j - first];
        }
        for (uint32_t k = 0; k < end - first; k++) {
                double w = sum != 0.0 ? doubles[k] / sum : doubles[k];

                weights[k] = (int32_t)(w * (1 << WEIGHT_BITS) + (w < 0 ? -0.5 : 0.5));
        }
        pass->taps[i] = (struct taps){ .first = first, .n = end - first };
}

static int pass_init(struct pass *pass, enum tdm_resize_filter filter, uint32_t n_in, uint32_t n_out, size_t *memory)
{
        double scale = (double)n_in / n_out;
        _cleanup_(freep) double *doubles = NULL;
        size_t bytes;

        pass->n_in = n_in;
        pass->n_out = n_out;
        pass->most = TDM_MIN(2 * (uint32_t)ceil(filter * (scale < 1.0 ? 1.0 : scale)) + 1, n_in);
        if (n_in == n_out)
                return 0;
        bytes = (size_t)n_out * pass->most * sizeof(pass->weights[0]);
        doubles = calloc(pass->most, sizeof(*doubles));
        pass->taps = calloc(n_out, sizeof(*pass->taps));
        pass->weights = malloc(bytes);
        if (!doubles || !pass->taps || !pass->weights)
                return -ENOMEM;
        *memory += bytes + n_out * sizeof(*pass->taps);
        for (uint32_t i = 0; i < n_out; i++)
                pass_output(pass, i, filter, doubles);
        return 0;
}

int tdm_resize_new(struct tdm_resize **ret, enum tdm_resize_filter filter, struct tdm_image_size from,
                   struct tdm_image_size to)
{
        _cleanup_(tdm_resize_destroyp) struct tdm_resize *resize = NULL;
        int r;

        if (from.width - 1 >= TDM_IMAGE_SIDE_MAX || from.height - 1 >= TDM_IMAGE_SIDE_MAX ||
            to.width - 1 >= TDM_IMAGE_SIDE_MAX || to.height - 1 >= TDM_IMAGE_SIDE_MAX)
                return -EINVAL;
        resize = calloc(1, sizeof(*resize));
        if (!resize)
                return -ENOMEM;
        resize->from = from;
        resize->to = to;
        r = pass_init(&resize->across, filter, from.width, to.width, &resize->memory);
        if (r == 0)
                r = pass_init(&resize->down, filter, from.height, to.height, &resize->memory);
        if (r < 0)
                return r;
        if (resize->down.taps) {
                size_t bytes = (size_t)resize->down.most * to.width * CHANNELS;

                resize->held = malloc(bytes);
                if (!resize->held)
                        return -ENOMEM;
                resize->memory += bytes;
        }
        *ret = steal_ptr(&resize);
        return 0;
}

static inline uint8_t byte_of_sum(int64_t sum)
{
        sum >>= WEIGHT_BITS;
        return (uint8_t)(sum < 0 ? 0 : sum > 255 ? 255 : sum);
}

static void resize_across(const struct tdm_resize *resize, const uint8_t *row, uint8_t *out)
{
        const struct pass *pass = &resize->across;

        if (!pass->taps) {
                memcpy(out, row, (size_t)resize->from.width * CHANNELS);
                return;
        }
        for (uint32_t i = 0; i < pass->n_out; i++) {
                const struct taps *taps = &pass->taps[i];
                const int32_t *weights = pass->weights + (size_t)i * pass->most;
                const uint8_t *in = row + (size_t)taps->first * CHANNELS;
                int64_t red = 1 << (WEIGHT_BITS - 1), green = red, blue = red;

                for (uint32_t k = 0; k < taps->n; k++, in += CHANNELS) {
                        red += weights[k] * (int64_t)in[0];
                        green += weights[k] * (int64_t)in[1];
                        blue += weights[k] * (int64_t)in[2];
                }
                *out++ = byte_of_sum(red);
                *out++ = byte_of_sum(green);
                *out++ = byte_of_sum(blue);
        }
}

/* A row of the first pass that is held. */
static uint8_t *held_row(const struct tdm_resize *resize, uint32_t y)
{
        return resize->held + (size_t)(y % resize->down.most) * resize->to.width * CHANNELS;
}

static void resize_down(const struct tdm_resize *resize, uint32_t i, uint8_t *out)
{
        const struct pass *pass = &resize->down;
        const struct taps *taps = &pass->taps[i];
        const int32_t *weights = pass->weights + (size_t)i * pass->most;
        size_t n = (size_t)resize->to.width * CHANNELS;
        enum { PIECE = 256 };

        for (size_t at = 0; at < n; at += PIECE) {
                size_t piece = TDM_MIN(n - at, (size_t)PIECE);
                int64_t sums[PIECE];

                for (size_t x = 0; x < piece; x++)
                        sums[x] = 1 << (WEIGHT_BITS - 1);
                for (uint32_t k = 0; k < taps->n; k++) {
                        const uint8_t *in = held_row(resize, taps->first + k) + at;

                        for (size_t x = 0; x < piece; x++)
                                sums[x] += weights[k] * (int64_t)in[x];
                }
                for (size_t x = 0; x < piece; x++)
                        out[at + x] = byte_of_sum(sums[x]);
        }
}

void tdm_resize_next(struct tdm_resize *resize, const uint8_t *rgb, uint8_t *out)
{
        size_t row_bytes = (size_t)resize->from.width * CHANNELS;
        uint32_t i = resize->next;

        if (i == resize->to.height)
                return;
        resize->next++;
        if (!resize->down.taps) {
                resize_across(resize, rgb + i * row_bytes, out);
                return;
        }
        /* Rows that no later output needs give their place to the next ones: first never goes back. */
        for (; resize->n_held < resize->down.taps[i].first + resize->down.taps[i].n; resize->n_held++)
                if (resize->n_held >= resize->down.taps[i].first)
                        resize_across(resize, rgb + resize->n_held * row_bytes, held_row(resize, resize->n_held));
        resize_down(resize, i, out);
}

size_t tdm_resize_memory(const struct tdm_resize *resize)
{
        return resize->memory;
}

void tdm_resize_destroy(struct tdm_resize *resize)
{
        if (!resize)
                return;
        free(resize->across.taps);
        free(resize->across.weights);
        free(resize->down.taps);
        free(resize->down.weights);
        free(resize->held);
        free(resize);
}

void tdm_resize_destroyp(struct tdm_resize **resize)
{
        tdm_resize_destroy(*resize);
}
