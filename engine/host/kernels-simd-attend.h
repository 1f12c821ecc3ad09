/* The SIMD versions of KV rows and attention, written once over a vector of 16 floats: see kernels-simd-ops.h, which
 * includes this.
 *
 * Tiles of 1 … V16_MAX_QUERIES queries share each load of a key or value. The functions are inlined with constant
 * n_queries, n_groups, n_vectors and type, so that the sums of a tile stay in registers; each sum is still one lane's
 * chain of fused multiply-adds in the reference's order.
 *
 * With few queries a span is bound by memory's latency: rows are short, pages are scattered. So the first tile of a
 * span fetches the next keys and the values while it multiplies keys: that halves the time of one row behind a long
 * context. (Fetching the next span's keys while the values are added gained nothing more.) */

/* ---- storing ---- */

TDM_INLINE uint32_t saturate(struct v16 *x, float limit)
{
        uint32_t n = v16_count_above(*x, limit);

        if (n)
                *x = v16_max(v16_set1(-limit), v16_min(v16_set1(limit), v16_finite_or_zero(*x)));
        return n;
}

/* One block of q8_0 into q [32], its scale into *ret_scale. n: at most 32. */
TDM_INLINE uint32_t quantise_block(const float *x, uint32_t n, int8_t *q, uint16_t *ret_scale)
{
        struct v16 v[2] = { n >= 16 ? v16_load(x) : v16_load_n(x, n), n == 32 ? v16_load(x + 16) :
                                                                      n > 16  ? v16_load_n(x + 16, n - 16) :
                                                                                v16_zero() },
                   magnitude = v16_zero(), inverse;
        uint32_t n_saturated = 0;
        uint16_t stored[16];
        float scale[16];

        for (int i = 0; i < 2; i++) {
                n_saturated += saturate(&v[i], TDM_KV_Q8_MAX);
                magnitude = v16_max(v16_max(v[i], v16_sub(v16_zero(), v[i])), magnitude);
        }
        v16_store_f16(stored, v16_set1(v16_fold_max(magnitude) / 127.0f));
        *ret_scale = stored[0];
        v16_store(scale, v16_load_f16(stored));
        inverse = v16_set1(scale[0] > 0 ? 1.0f / scale[0] : 0);
        for (int i = 0; i < 2; i++)
                v16_store_i8(q + 16 * i, v16_max(v16_min(v16_mul(v[i], inverse), v16_set1(127.0f)), v16_set1(-127.0f)));
        return n_saturated;
}

static uint32_t kv_store_q8(uint8_t *part, uint32_t head_dim, uint32_t t, const float *k, const float *v)
{
        uint32_t n_blocks = tdm_kv_n_blocks(head_dim), n_saturated = 0;
        uint8_t *values = part + tdm_kv_values_offset(TDM_KV_Q8_0, head_dim),
                *keys = part + (size_t)(t / 16) * head_dim * 16 + t % 16;
        uint16_t *k_scales =
                (uint16_t *)(part + TDM_KV_PAGE_TOKENS * head_dim) + (size_t)(t / 16) * n_blocks * 16 + t % 16;
        uint16_t *v_scales = (uint16_t *)(values + TDM_KV_PAGE_TOKENS * head_dim) + (size_t)t * n_blocks;

        for (uint32_t d = 0; d < head_dim; d += TDM_KV_BLOCK_DIMS) {
                uint32_t n = TDM_MIN(TDM_KV_BLOCK_DIMS, head_dim - d);
                int8_t q[TDM_KV_BLOCK_DIMS];

                n_saturated += quantise_block(k + d, n, q, &k_scales[d / TDM_KV_BLOCK_DIMS * 16]);
                for (uint32_t i = 0; i < n; i++)
                        keys[(size_t)(d + i) * 16] = (uint8_t)q[i];
                n_saturated += quantise_block(v + d, n, q, &v_scales[d / TDM_KV_BLOCK_DIMS]);
                memcpy(values + (size_t)t * head_dim + d, q, n);
        }
        return n_saturated;
}

static uint32_t kv_store(uint8_t *part, enum tdm_kv_type type, uint32_t head_dim, uint32_t t, const float *k,
                         const float *v)
{
        size_t k_first = (size_t)(t / 16) * head_dim * 16 + t % 16,
               v_first = (size_t)(TDM_KV_PAGE_TOKENS + t) * head_dim;
        uint32_t n_saturated = 0;

        if (type == TDM_KV_Q8_0)
                return kv_store_q8(part, head_dim, t, k, v);
        if (type == TDM_KV_F32) {
                float *to = (float *)part;

                for (uint32_t d = 0; d < head_dim; d++)
                        to[k_first + (size_t)d * 16] = k[d];
                memcpy(to + v_first, v, head_dim * sizeof(float));
                return 0;
        }
        for (uint32_t d = 0; d < head_dim; d += 16) {
                uint16_t *to = (uint16_t *)part, column[16], row[16];
                uint32_t n = TDM_MIN(head_dim - d, 16u);
                struct v16 x = n == 16 ? v16_load(k + d) : v16_load_n(k + d, n),
                           y = n == 16 ? v16_load(v + d) : v16_load_n(v + d, n);

                n_saturated += saturate(&x, TDM_F16_MAX) + saturate(&y, TDM_F16_MAX);
                v16_store_f16(column, x);
                for (uint32_t i = 0; i < n; i++)
                        to[k_first + (size_t)(d + i) * 16] = column[i];
                if (n == 16) {
                        v16_store_f16(to + v_first + d, y);
                        continue;
                }
                v16_store_f16(row, y);
                memcpy(to + v_first + d, row, n * sizeof(*row));
        }
        return n_saturated;
}

/* ---- attention over a span ---- */

static void attend_merge(const struct tdm_attend_query *into, const struct tdm_attend_query *span, uint32_t head_dim)
{
        struct v16 a, b;
        float m, ab[2];

        if (*into->m == -INFINITY) {
                *into->m = *span->m;
                *into->l = *span->l;
                memcpy(into->o, span->o, head_dim * sizeof(float));
                return;
        }
        m = *into->m > *span->m ? *into->m : *span->m;
        ab[0] = *into->m - m;
        ab[1] = *span->m - m;
        exp_array(ab, 2, ab);
        *into->m = m;
        *into->l = fmaf(*into->l, ab[0], *span->l * ab[1]);
        a = v16_set1(ab[0]);
        b = v16_set1(ab[1]);
        for (uint32_t d = 0; d + 16 <= head_dim; d += 16)
                v16_store(into->o + d, v16_fma(v16_load(into->o + d), a, v16_mul(v16_load(span->o + d), b)));
        if (head_dim % 16) {
                uint32_t d = head_dim & ~15u, n = head_dim - d;

                v16_store_n(into->o + d, v16_fma(v16_load_n(into->o + d, n), a, v16_mul(v16_load_n(span->o + d, n), b)),
                            n);
        }
}

struct attend_tile {
        const struct tdm_attend_span *span;
        const struct tdm_attend_query *queries;
        float *p;                /* [queries of the tile][TDM_ATTENTION_SPAN] */
        float *v_scales;         /* q8_0: [TDM_ATTENTION_SPAN][blocks of 32 dimensions] */
        uint32_t lo, hi;         /* keys that any query looks at */
        uint32_t all_lo, all_hi; /* keys that every query looks at; empty when all_lo >= all_hi */
        bool is_first;           /* of the span: fetches what comes */
        float a[8], b[8];        /* the merge's factors */
        bool first[8];
};

/* 16 keys of a page. */
struct attend_keys {
        const uint8_t *k, *scales; /* [head_dim][16]; q8_0: f16 [blocks][16] */
        const uint8_t *v;          /* the values of the same positions */
        uint32_t t;
};

TDM_INLINE unsigned element_bytes(enum tdm_kv_type type)
{
        return type == TDM_KV_F32 ? 4 : type == TDM_KV_F16 ? 2 : 1;
}

TDM_INLINE struct v16 kv_vector(const uint8_t *data, size_t index, enum tdm_kv_type type)
{
        if (type == TDM_KV_Q8_0)
                return v16_load_i8((const int8_t *)data + index);
        return type == TDM_KV_F16 ? v16_load_f16((const uint16_t *)data + index) :
                                    v16_load((const float *)data + index);
}

TDM_INLINE void fetch(const uint8_t *p)
{
        __builtin_prefetch(p, 0, 2); /* into the second cache: a span's keys and values fit there, not in the first */
}

TDM_INLINE void attend_scores_at(const struct attend_tile *tile, const struct attend_keys *keys,
                                 const struct attend_keys *next, unsigned n_groups, unsigned n_queries,
                                 enum tdm_kv_type type)
{
        uint32_t head_dim = tile->span->head_dim, block = type == TDM_KV_Q8_0 ? TDM_KV_BLOCK_DIMS : head_dim;
        size_t step = tile->is_first ? 16 * element_bytes(type) : 0;

        for (uint32_t first = 0; first < head_dim; first += block) {
                uint32_t end = TDM_MIN(first + block, head_dim);
                struct v16 s[8][8];

#pragma GCC unroll 8
                for (unsigned i = 0; i < n_queries; i++)
#pragma GCC unroll 8
                        for (unsigned g = 0; g < n_groups; g++)
                                s[i][g] = v16_zero();
                for (uint32_t d = first; d < end; d++) {
                        struct v16 k[8];

#pragma GCC unroll 8
                        for (unsigned g = 0; g < n_groups; g++) {
                                k[g] = kv_vector(keys[g].k, (size_t)d * 16, type);
                                fetch(keys[g].v + d * step);
                                fetch(next[g].k + d * step);
                        }
#pragma GCC unroll 8
                        for (unsigned i = 0; i < n_queries; i++) {
                                struct v16 q = v16_set1(tile->queries[i].q[d]);

#pragma GCC unroll 8
                                for (unsigned g = 0; g < n_groups; g++)
                                        s[i][g] = v16_fma(q, k[g], s[i][g]);
                        }
                }
#pragma GCC unroll 8
                for (unsigned g = 0; g < n_groups; g++) {
                        struct v16 scale = v16_zero();

                        if (type == TDM_KV_Q8_0)
                                scale = v16_load_f16((const uint16_t *)keys[g].scales + first / TDM_KV_BLOCK_DIMS * 16);
#pragma GCC unroll 8
                        for (unsigned i = 0; i < n_queries; i++) {
                                float *p = tile->p + i * TDM_ATTENTION_SPAN + keys[g].t;

                                if (type == TDM_KV_Q8_0)
                                        s[i][g] = v16_fma(s[i][g], scale, first ? v16_load(p) : v16_zero());
                                v16_store(p, s[i][g]);
                        }
                }
        }
}

TDM_INLINE void attend_scores(const struct attend_tile *tile, unsigned n_queries, unsigned n_groups,
                              enum tdm_kv_type type)
{
        struct attend_keys keys[TDM_ATTENTION_SPAN / 16 + 1];
        uint32_t head_dim = tile->span->head_dim, n_blocks = tdm_kv_n_blocks(head_dim), n = 0, i = 0;

        for (uint32_t group = tile->lo / 16; group <= (tile->hi - 1) / 16; group++) {
                const uint8_t *part = tile->span->parts[group / 2];
                uint32_t t = group % 2 * 16;

                if (part)
                        keys[n++] = (struct attend_keys){
                                part + (size_t)t * head_dim * element_bytes(type),
                                part + (size_t)TDM_KV_PAGE_TOKENS * head_dim + (size_t)t * n_blocks * 2,
                                part + tdm_kv_values_offset(type, head_dim) +
                                        (size_t)t * head_dim * element_bytes(type),
                                group * 16,
                        };
        }
        for (; i + n_groups <= n; i += n_groups)
                attend_scores_at(tile, keys + i, keys + (i + 2 * n_groups <= n ? i + n_groups : i), n_groups, n_queries,
                                 type);
        for (; i < n; i++)
                attend_scores_at(tile, keys + i, keys + i, 1, n_queries, type);
}

/* The scales of all values that may be looked at, as floats. What lies between is not used. */
TDM_INLINE void attend_scales(const struct attend_tile *tile)
{
        uint32_t head_dim = tile->span->head_dim, n = TDM_KV_PAGE_TOKENS * tdm_kv_n_blocks(head_dim);

        for (uint32_t page = tile->lo / TDM_KV_PAGE_TOKENS; page <= (tile->hi - 1) / TDM_KV_PAGE_TOKENS; page++) {
                const uint8_t *part = tile->span->parts[page];

                if (!part)
                        continue;
                part += tdm_kv_values_offset(TDM_KV_Q8_0, head_dim) + (size_t)TDM_KV_PAGE_TOKENS * head_dim;
                for (uint32_t i = 0; i < n; i += 16)
                        v16_store(tile->v_scales + (size_t)page * n + i, v16_load_f16((const uint16_t *)part + i));
        }
}

/* Scores at keys begin … end - 1 and, up to the next multiple of 16, whatever lies behind them. */
static void cap_scores(float *p, uint32_t begin, uint32_t end, float cap)
{
        const struct v16 one = v16_set1(1.0f), two = v16_set1(2.0f), sharpness = v16_set1(2.0f / cap);

        for (uint32_t t = begin; t < end; t += 16) {
                struct v16 e = v16_exp(v16_mul(v16_load(p + t), sharpness));

                v16_store(p + t, v16_mul(v16_set1(cap), v16_sub(one, v16_div(two, v16_add(e, one)))));
        }
}

/* Scores to weights: the maximum, exp, the denominator; and the merge's part that is not the numerator. */
TDM_INLINE void attend_softmax(struct attend_tile *tile, unsigned n_queries)
{
        for (unsigned i = 0; i < n_queries; i++) {
                const struct tdm_attend_query *query = &tile->queries[i];
                float *p = tile->p + i * TDM_ATTENTION_SPAN;
                uint32_t begin = query->lo & ~15u;
                struct v16 max = v16_set1(-INFINITY), sum = v16_zero();
                float m, l, ab[2], merged;

                if (tile->span->softcap > 0)
                        cap_scores(p, begin, query->hi, tile->span->softcap);
                for (uint32_t t = begin; t < query->hi; t += 16)
                        max = v16_max(v16_keep(v16_load(p + t), v16_set1(-INFINITY), t, query->lo, query->hi), max);
                m = v16_fold_max(max) + 0.0f;
                for (uint32_t t = begin; t < query->hi; t += 16) {
                        struct v16 e = v16_exp(v16_sub(v16_load(p + t), v16_set1(m)));

                        e = v16_keep(e, v16_zero(), t, query->lo, query->hi);
                        v16_store(p + t, e);
                        sum = v16_add(sum, e);
                }
                l = v16_fold_add(sum);
                tile->first[i] = *query->m == -INFINITY;
                if (tile->first[i]) {
                        *query->m = m;
                        *query->l = l;
                        continue;
                }
                merged = *query->m > m ? *query->m : m;
                ab[0] = *query->m - merged;
                ab[1] = m - merged;
                exp_array(ab, 2, ab);
                tile->a[i] = ab[0];
                tile->b[i] = ab[1];
                *query->m = merged;
                *query->l = fmaf(*query->l, ab[0], l * ab[1]);
        }
}

/* Adds values [from, end) of one page to a tile's sums. whole: every query looks at all of them. */
TDM_INLINE void attend_values_page(const struct attend_tile *tile, uint32_t from, uint32_t end, uint32_t first_d,
                                   uint32_t n_again, unsigned n_queries, unsigned n_vectors, enum tdm_kv_type type,
                                   bool whole, struct v16 (*o)[8])
{
        uint32_t head_dim = tile->span->head_dim, page = from / TDM_KV_PAGE_TOKENS,
                 n_blocks = tdm_kv_n_blocks(head_dim);
        const uint8_t *values = tile->span->parts[page] + tdm_kv_values_offset(type, head_dim);

        for (uint32_t t = from; t < end; t++) {
                const float *scales = tile->v_scales + (size_t)t * n_blocks;
                struct v16 v[8];

#pragma GCC unroll 8
                for (unsigned c = 0; c < n_vectors; c++) {
                        v[c] = kv_vector(values, (size_t)(t % TDM_KV_PAGE_TOKENS) * head_dim + first_d + c * 16, type);
                        if (type == TDM_KV_Q8_0)
                                v[c] = v16_mul(v[c],
                                               v16_set1(scales[(first_d + n_again + c * 16) / TDM_KV_BLOCK_DIMS]));
                }
#pragma GCC unroll 8
                for (unsigned i = 0; i < n_queries; i++) {
                        struct v16 p = v16_set1(tile->p[i * TDM_ATTENTION_SPAN + t]);

                        if (whole || (t >= tile->queries[i].lo && t < tile->queries[i].hi))
#pragma GCC unroll 8
                                for (unsigned c = 0; c < n_vectors; c++)
                                        o[i][c] = v16_fma(p, v[c], o[i][c]);
                }
        }
}

/* n_again: of the first dimensions that are kept already; only with one vector. */
TDM_INLINE void attend_values_at(const struct attend_tile *tile, uint32_t first_d, uint32_t n_again, unsigned n_queries,
                                 unsigned n_vectors, enum tdm_kv_type type)
{
        struct v16 o[8][8];

#pragma GCC unroll 8
        for (unsigned i = 0; i < n_queries; i++)
#pragma GCC unroll 8
                for (unsigned c = 0; c < n_vectors; c++)
                        o[i][c] = v16_zero();
        for (uint32_t from = tile->lo, end; from < tile->hi; from = end) {
                end = TDM_MIN(from - from % TDM_KV_PAGE_TOKENS + TDM_KV_PAGE_TOKENS, tile->hi);
                if (from >= tile->all_lo && end <= tile->all_hi)
                        attend_values_page(tile, from, end, first_d, n_again, n_queries, n_vectors, type, true, o);
                else if (tile->span->parts[from / TDM_KV_PAGE_TOKENS])
                        attend_values_page(tile, from, end, first_d, n_again, n_queries, n_vectors, type, false, o);
        }
#pragma GCC unroll 8
        for (unsigned i = 0; i < n_queries; i++) {
                float *to = tile->queries[i].o + first_d;
                struct v16 a = v16_set1(tile->a[i]), b = v16_set1(tile->b[i]);

                if (n_again) {
                        float merged[16];

                        v16_store(merged, tile->first[i] ? o[i][0] : v16_fma(v16_load(to), a, v16_mul(o[i][0], b)));
                        memcpy(to + n_again, merged + n_again, (16 - n_again) * sizeof(float));
                        continue;
                }
#pragma GCC unroll 8
                for (unsigned c = 0; c < n_vectors; c++)
                        v16_store(to + c * 16,
                                  tile->first[i] ? o[i][c] : v16_fma(v16_load(to + c * 16), a, v16_mul(o[i][c], b)));
        }
}

TDM_INLINE void attend_values(const struct attend_tile *tile, unsigned n_queries, unsigned n_vectors,
                              enum tdm_kv_type type)
{
        uint32_t d = 0;

        for (; d + n_vectors * 16 <= tile->span->head_dim; d += n_vectors * 16)
                attend_values_at(tile, d, 0, n_queries, n_vectors, type);
        for (; d + 16 <= tile->span->head_dim; d += 16)
                attend_values_at(tile, d, 0, n_queries, 1, type);
        if (d < tile->span->head_dim) /* the last ones with some before them, since a head has 16 or more */
                attend_values_at(tile, tile->span->head_dim - 16, d + 16 - tile->span->head_dim, n_queries, 1, type);
}

#define DEFINE_ATTEND_TILE(n, type)                                                                                    \
        static __attribute__((noinline)) void attend_tile_##n##_##type(struct attend_tile *tile)                       \
        {                                                                                                              \
                attend_scores(tile, n, V16_SCORE_GROUPS(n), type);                                                     \
                attend_softmax(tile, n);                                                                               \
                attend_values(tile, n, V16_VALUE_VECTORS(n), type);                                                    \
        }
#define DEFINE_ATTEND_TILES(n)                                                                                         \
        DEFINE_ATTEND_TILE(n, TDM_KV_F16)                                                                              \
        DEFINE_ATTEND_TILE(n, TDM_KV_F32)                                                                              \
        DEFINE_ATTEND_TILE(n, TDM_KV_Q8_0)
#define ATTEND_TILES(n)                                                                                                \
        {                                                                                                              \
                [TDM_KV_F16] = attend_tile_##n##_TDM_KV_F16, [TDM_KV_F32] = attend_tile_##n##_TDM_KV_F32,              \
                [TDM_KV_Q8_0] = attend_tile_##n##_TDM_KV_Q8_0,                                                         \
        }
DEFINE_ATTEND_TILES(1)
DEFINE_ATTEND_TILES(2)
#if V16_MAX_QUERIES >= 4
DEFINE_ATTEND_TILES(4)
#endif
#if V16_MAX_QUERIES >= 8
DEFINE_ATTEND_TILES(8)
#endif

static void (*const attend_tiles[][4])(struct attend_tile *tile) = {
        /* log2 of the queries, type */
        ATTEND_TILES(1),
        ATTEND_TILES(2),
#if V16_MAX_QUERIES >= 4
        ATTEND_TILES(4),
#endif
#if V16_MAX_QUERIES >= 8
        ATTEND_TILES(8),
#endif
};

static void attend_span(const struct tdm_attend_span *span)
{
        for (uint32_t i = 0, n; i < span->n_queries; i += n) {
                struct attend_tile tile = { .span = span,
                                            .queries = span->queries + i,
                                            .p = span->scratch,
                                            .is_first = i == 0,
                                            .v_scales = span->scratch + V16_MAX_QUERIES * TDM_ATTENTION_SPAN,
                                            .lo = TDM_ATTENTION_SPAN,
                                            .all_hi = TDM_ATTENTION_SPAN };

                for (n = V16_MAX_QUERIES; n > span->n_queries - i; n /= 2)
                        ;
                for (uint32_t j = 0; j < n; j++) {
                        tile.lo = TDM_MIN(tile.lo, tile.queries[j].lo);
                        tile.hi = TDM_MAX(tile.hi, tile.queries[j].hi);
                        tile.all_lo = TDM_MAX(tile.all_lo, tile.queries[j].lo);
                        tile.all_hi = TDM_MIN(tile.all_hi, tile.queries[j].hi);
                }
                if (span->type == TDM_KV_Q8_0)
                        attend_scales(&tile);
                attend_tiles[__builtin_ctz(n)][span->type](&tile);
        }
}
