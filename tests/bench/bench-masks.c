/* Times compiling and masks of one grammar engine, this one, for bench-masks.py, which times others in the same way.
 *
 *   bench-masks VOCABULARY
 *
 * VOCABULARY: of each id a 32-bit little-endian number, and as many bytes. The top bit of the number: the id ends a
 * text. From standard input, a line each: {"schema": …, "texts": [[id, …], …]}. Answers a line each: {"compile": ns,
 * "texts": [{"accepted": bool, "masks": [ns, …], "accepts": [ns, …]}, …]}, or {"refused": why}. A text is accepted if
 * each mask allows the next id and the last one an end. Times are processor time of the thread. Each text has a fresh
 * matcher. It finds the tables that the text before left, as jobs of one user do, and the first one those of the masks
 * that were made ahead, which count as compiling. */
#include <inttypes.h>
#include "engine/grammar/grammar.h"
#include "engine/grammar/json.h"

#define IS_END (UINT32_C(1) << 31)
#define KEPT_BYTES ((size_t)256 << 10) /* as the daemon has it */
#define AHEAD_STEPS 100000u            /* likewise */

struct piece {
        uint32_t size; /* with IS_END */
        const char *data;
};

static struct piece *pieces;
static uint32_t n_pieces, end_id;

static uint64_t cpu_ns(void)
{
        struct timespec ts;

        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        return (uint64_t)ts.tv_sec * TDM_NSEC_PER_SEC + (uint64_t)ts.tv_nsec;
}

static size_t piece_of(void *userdata, uint32_t id, const char **ret_data)
{
        *ret_data = pieces[id].data;
        return pieces[id].size & ~IS_END;
}

static bool piece_is_end(void *userdata, uint32_t id)
{
        return pieces[id].size & IS_END;
}

/* Keeps what it read: the pieces point into it. */
static bool pieces_read(const char *path)
{
        FILE *f = fopen(path, "re");
        char *data;
        long size;

        if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 4 || fseek(f, 0, SEEK_SET))
                return false;
        data = malloc((size_t)size);
        pieces = calloc((size_t)size / 4, sizeof(*pieces));
        if (!data || !pieces || fread(data, 1, (size_t)size, f) != (size_t)size)
                return false;
        fclose(f);
        for (long at = 0; at + 4 <= size; n_pieces++) {
                memcpy(&pieces[n_pieces].size, data + at, 4);
                pieces[n_pieces].data = data + at + 4;
                at += 4 + (long)(pieces[n_pieces].size & ~IS_END);
                if (at > size)
                        return false;
                if (pieces[n_pieces].size & IS_END)
                        end_id = n_pieces;
        }
        return true;
}

static uint32_t id_read(const struct tdm_json *json, uint32_t node)
{
        uint32_t id = 0;

        for (uint32_t i = 0; i < tdm_json_get(json, node)->text_size; i++)
                id = id * 10 + (uint32_t)(tdm_json_text(json, node)[i] - '0');
        return id < n_pieces ? id : end_id;
}

static void times_print(const char *name, const uint64_t *ns, size_t n)
{
        printf(",\"%s\":[", name);
        for (size_t i = 0; i < n; i++)
                printf("%s%" PRIu64, i ? "," : "", ns[i]);
        printf("]");
}

static void text_run(struct tdm_grammar *g, struct tdm_vocabulary *v, const struct tdm_json *json, uint32_t text)
{
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        const uint64_t *mask;
        uint64_t *masks, *accepts, start;
        uint32_t n = 0, at = tdm_json_get(json, text)->first;
        bool accepted = true;

        masks = calloc(2 * ((size_t)tdm_json_get(json, text)->n + 1), sizeof(*masks));
        if (!masks || tdm_matcher_new(&m, g, v))
                abort();
        accepts = masks + tdm_json_get(json, text)->n + 1;
        for (bool end = false; accepted && !end; n++) {
                uint32_t id = end_id;

                end = at == TDM_JSON_NONE;
                if (!end) {
                        id = id_read(json, at);
                        at = tdm_json_get(json, at)->next;
                }
                start = cpu_ns();
                accepted = tdm_matcher_mask(m, &mask) == 0;
                masks[n] = cpu_ns() - start;
                accepted = accepted && (mask[id / 64] >> id % 64 & 1);
                start = cpu_ns();
                accepted = accepted && tdm_matcher_accept(m, id) == 1;
                accepts[n] = cpu_ns() - start;
        }
        printf("{\"accepted\":%s", accepted ? "true" : "false");
        times_print("masks", masks, n);
        times_print("accepts", accepts, n);
        printf("}");
        free(masks);
}

/* As the daemon does it on a thread. */
static int schema_compile(struct tdm_grammar **ret, const struct tdm_json_buffer *schema, struct tdm_vocabulary *v,
                          struct tdm_error *err)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        _cleanup_(tdm_matcher_destroyp) struct tdm_matcher *m = NULL;
        int r = tdm_grammar_new_schema(&g, schema->data, schema->size, 0, NULL, err);

        if (r == 0)
                r = tdm_matcher_new(&m, g, v);
        if (r == 0)
                r = tdm_matcher_look_ahead(m, AHEAD_STEPS);
        if (r != 0)
                return r;
        tdm_grammar_keep_tables(g, KEPT_BYTES);
        *ret = steal_ptr(&g);
        return 0;
}

static void line_run(struct tdm_vocabulary *v, const char *line, size_t size)
{
        _cleanup_(tdm_grammar_unrefp) struct tdm_grammar *g = NULL;
        struct tdm_json json;
        struct tdm_json_buffer schema = { 0 }, why = { 0 };
        struct tdm_error err = { 0 };
        uint64_t start;
        uint32_t texts;

        if (tdm_json_parse(&json, line, size, 500, NULL))
                abort();
        tdm_json_print(&json, tdm_json_member(&json, 0, "schema"), &schema);
        start = cpu_ns();
        if (schema_compile(&g, &schema, v, &err)) {
                tdm_json_write_string(&why, err.message, strlen(err.message));
                printf("{\"refused\":%.*s}\n", (int)why.size, why.data);
        } else {
                printf("{\"compile\":%" PRIu64 ",\"texts\":[", cpu_ns() - start);
                texts = tdm_json_member(&json, 0, "texts");
                for (uint32_t at = tdm_json_get(&json, texts)->first; at != TDM_JSON_NONE;
                     at = tdm_json_get(&json, at)->next) {
                        text_run(g, v, &json, at);
                        if (tdm_json_get(&json, at)->next != TDM_JSON_NONE)
                                printf(",");
                }
                printf("]}\n");
        }
        fflush(stdout);
        free(schema.data);
        free(why.data);
        tdm_json_deinit(&json);
}

int main(int argc, char **argv)
{
        struct tdm_vocabulary *v;
        char *line = NULL;
        size_t capacity = 0;
        ssize_t size;
        uint64_t start;

        if (argc != 2 || !pieces_read(argv[1]))
                return 2;
        start = cpu_ns();
        if (tdm_vocabulary_new(&v, n_pieces, piece_of, piece_is_end, NULL))
                return 1;
        printf("{\"vocabulary\":%" PRIu64 ",\"bytes\":%zu}\n", cpu_ns() - start, tdm_vocabulary_bytes(v));
        fflush(stdout);
        while ((size = getline(&line, &capacity, stdin)) > 0)
                line_run(v, line, (size_t)size);
        tdm_vocabulary_unref(v);
        free(line);
        return 0;
}
