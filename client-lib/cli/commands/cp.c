/* tandem cp: another name for a model, as users of Ollama say it. It is `tandem add` of the file that has the first. */
#include "client-lib/cli/cli.h"
#include "client-lib/store/folder.h"
#include "common/suggest.h"

extern const struct command command_cp, command_add;

/* The file that a name means: in the caller's own folder, or where a daemon lists it. NULL: there is none. */
static char *find_file(struct cli *cli, const char *name)
{
        struct tdm_suggestion near = tdm_suggest_for(name);
        _cleanup_(freep) char *folder = NULL;
        struct tdm_error err;
        char *path = NULL;
        bool answered;

        if (strchr(name, '/'))
                return strdup(name);
        if (folder_of_user(&folder, &err) == 0)
                path = folder_find(folder, name, &near);
        return path ? path : cli_listed_file(cli, name, &answered);
}

static int run_cp(struct cli *cli, int argc, char **argv)
{
        char *words[] = { (char *)(uintptr_t) "add", (char *)(uintptr_t) "--name", NULL, NULL };
        const char *names[2] = { NULL };
        _cleanup_(freep) char *file = NULL;
        unsigned n;
        int status;

        if (cli_parse(cli, &command_cp, argc, argv, NULL, names, TDM_ARRAY_SIZE(names), &n, &status))
                return status;
        if (n < 2)
                return args_usage_error(argv[0], "%s is missing", n == 0 ? "MODEL" : "the new NAME");
        file = find_file(cli, cli_plain_name(names[0]));
        if (!file)
                return complain("no model is named %s, or you may not read its file (`tandem models` lists them)",
                                names[0]);
        words[2] = (char *)(uintptr_t)cli_plain_name(names[1]);
        words[3] = file;
        return command_add.run(cli, TDM_ARRAY_SIZE(words), words);
}

const struct command command_cp = {
        .name = "cp",
        .summary = "give a model another name",
        .usage = "MODEL NAME",
        .about = "Gives a model one more name, in your own model folder. Nothing is copied: it is a link to the same "
                 "file, as `tandem add --name` makes it.",
        .offer = OFFER_MODELS,
        .run = run_cp,
};
