/* tandem ps: the models in memory. */
#include "client-lib/cli/cli.h"

#include <inttypes.h>
#include <time.h>

struct ps_options {
        bool json;
};

extern const struct command command_ps;

static bool is_in_memory(const struct tandem_model *m)
{
        return m->resident_bytes > 0 || strcmp(m->state, "loading") == 0;
}

/* When it leaves if nobody asks for it: "in 4 min". */
static void write_until(char *to, size_t size, const struct tandem_model *m)
{
        time_t now = time(NULL);
        char duration[32];

        if (m->expires_s == 0) {
                snprintf(to, size, "its memory is needed");
                return;
        }
        format_duration(duration, sizeof(duration),
                        m->expires_s > (uint64_t)now ? (double)(m->expires_s - (uint64_t)now) : 0.0);
        snprintf(to, size, "in %s", duration);
}

static void print_loaded(const struct tandem_model_list *list)
{
        size_t n_shown = 0;
        int width = 4;

        for (size_t i = 0; i < list->n_models; i++)
                if (is_in_memory(list->models[i]))
                        width = TDM_MAX(width, TDM_MIN(text_columns(term_safe(list->models[i]->name)), 40));
        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *m = list->models[i];
                const char *name = term_safe(m->name);
                char until[64];

                if (!is_in_memory(m))
                        continue;
                if (n_shown++ == 0)
                        out_printf("%-*s  %-8s  %10s  %7s  %s\n", width, "NAME", "STATE", "MEMORY", "CONTEXT",
                                   "LEAVES");
                write_until(until, sizeof(until), m);
                out_printf("%s%*s  ", name, TDM_MAX(width - text_columns(name), 0), "");
                out_state(m->state);
                out_printf("%*s  %10s  %7" PRIu32 "  %s\n", TDM_MAX(8 - text_columns(m->state), 0), "",
                           human_bytes(m->resident_bytes), m->context, until);
        }
        if (n_shown == 0)
                out_puts("no model in memory: the first job loads one (`tandem models` lists those that are here)\n");
}

static int run_ps(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct ps_options options = { 0 };
        struct tandem_model_list *list;
        struct tandem_error err;
        size_t n_kept = 0;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_ps, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_list_models(tandem, &list, &err) != TANDEM_OK)
                return complain_error(&err);
        if (options.json) {
                struct tandem_model_list loaded = *list;
                const struct tandem_model **models = calloc(list->n_models + 1, sizeof(*models));

                for (size_t i = 0; models && i < list->n_models; i++)
                        if (is_in_memory(list->models[i]))
                                models[n_kept++] = list->models[i];
                loaded.models = models;
                loaded.n_models = n_kept;
                buf_puts(&b, "{");
                json_models(&b, &loaded);
                buf_puts(&b, "}");
                status = models ? print_json(&b) : complain("no memory for the list");
                free(models);
        } else {
                print_loaded(list);
                status = out_finish();
        }
        tandem_model_list_free(list);
        return status;
}

static const struct arg args[] = { ARG_JSON(struct ps_options, json,
                                            "one JSON object, with the field names of tandem.proto") };

const struct command command_ps = {
        .name = "ps",
        .summary = "the models in memory",
        .usage = "[--json]",
        .about = "Lists the models in memory, how much each takes, and when it leaves if nobody asks for it. `tandem "
                 "jobs` lists what they do.",
        COMMAND_ARGS(args),
        .run = run_ps,
};
