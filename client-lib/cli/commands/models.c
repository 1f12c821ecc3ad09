/* tandem models: what can be generated with. */
#include "client-lib/cli/cli.h"

struct models_options {
        bool json;
};

extern const struct command command_models;

/* Paths below the home are shorter with ~, which a shell takes, too. */
static void print_file(const struct tandem_model *m, const char *which)
{
        const char *home = getenv("HOME");
        size_t n = home ? strlen(home) : 0;
        bool at_home = n > 1 && strncmp(m->path, home, n) == 0 && m->path[n] == '/';
        bool gone = m->path[0] == '/' && access(m->path, F_OK) < 0 && errno == ENOENT;

        out_printf("%s%s%s%s%s%s\n", at_home ? "~" : "", term_safe(m->path + (at_home ? n : 0)),
                   gone                 ? " (removed; unload it to forget it)" :
                   m->path[0] == '/'    ? "" :
                   strchr(m->path, '/') ? " (handed over as a file, from the folder of who named it so)" :
                                          " (handed over as a file; no name for others)",
                   which, *m->error ? ": " : "", term_safe(m->error));
}

/* Which file -m takes where several models have one name: the one that the library asks for, or the first one that the
 * daemon lists. */
static const char *which_is_taken(struct tandem *tandem, const struct tandem_model_list *list,
                                  const struct tandem_model *m)
{
        const struct tandem_model *first = NULL;
        const char *asked = cli_model(tandem, m->name);
        unsigned n = 0;

        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *other = list->models[i];

                if (strcmp(other->name, m->name) != 0 || !strchr(other->path, '/'))
                        continue;
                first = first ? first : other;
                n++;
        }
        if (n < 2 || !strchr(m->path, '/'))
                return "";
        if (strchr(asked, '/') ? strcmp(asked, m->path) == 0 : m == first)
                return " (this one is taken by its name)";
        return " (hidden by another of its name; -m takes the file)";
}

static void print_models(struct tandem *tandem, const struct tandem_model_list *list)
{
        int width = 4;

        if (list->n_models == 0) {
                out_puts("no models (tandem pull fetches one, tandem add takes a file; or name it: -m ./model.gguf)\n");
                return;
        }
        for (size_t i = 0; i < list->n_models; i++)
                width = TDM_MAX(width, TDM_MIN(text_columns(term_safe(list->models[i]->name)), 40));
        out_printf("  %-*s  %-9s  %10s  %s\n", width, "NAME", "STATE", "SIZE", "FILE");
        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *m = list->models[i];

                const char *name = term_safe(m->name);

                out_printf("%s %s%*s  ", m->is_default ? "*" : " ", name, TDM_MAX(width - text_columns(name), 0), "");
                out_state(m->state);
                out_printf("%*s  %10s  ", TDM_MAX(9 - text_columns(m->state), 0), "", human_bytes(m->file_bytes));
                print_file(m, which_is_taken(tandem, list, m));
        }
        out_lines(true);
        out_puts("* is taken where no -m names a model. Another: default-model in ~/.config/tandem/tandem.conf, or in "
                 "/etc/tandem/tandem.conf for the system service\n");
        out_lines(false);
}

static int run_models(struct cli *cli, int argc, char **argv)
{
        _cleanup_(tandem_closep) struct tandem *tandem = NULL;
        _cleanup_(buf_freep) struct buf b = { 0 };
        struct models_options options = { 0 };
        struct tandem_model_list *answer;
        struct model_listing listing;
        struct tandem_error err;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_models, argc, argv, &options, NULL, 0, &n, &status))
                return status;
        tandem = cli_connect(cli);
        if (!tandem)
                return EXIT_FAILED;
        if (tandem_list_models(tandem, &answer, &err) != TANDEM_OK)
                return complain_error(&err);
        if (!model_listing_make(&listing, answer)) {
                status = complain("no memory for the list");
        } else if (options.json) {
                buf_puts(&b, "{");
                json_models(&b, &listing.list);
                buf_puts(&b, "}");
                status = print_json(&b);
        } else {
                print_models(tandem, &listing.list);
                status = out_finish();
        }
        model_listing_free(&listing);
        tandem_model_list_free(answer);
        return status;
}

static const struct arg args[] = { ARG_JSON(struct models_options, json,
                                            "one JSON object, with the field names of tandem.proto") };

const struct command command_models = {
        .name = "models",
        .summary = "the models there are",
        .usage = "[--json]",
        .about = "Lists the models in the daemon's model directories, those in your own folder, which is "
                 "~/.local/share/tandem/models, and those that clients handed over as files. A * stands before the "
                 "model that is taken where none is named. Of two that have one name the list says which it means; the "
                 "other is named by its file.",
        COMMAND_ARGS(args),
        .run = run_models,
};
