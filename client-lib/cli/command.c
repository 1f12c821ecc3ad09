/* Commands by name. Which ones there are is said by registry.c. */
#include "client-lib/cli/command.h"
#include "client-lib/cli/term.h"
#include "common/suggest.h"

#include <stdarg.h>

const struct command *const *commands;
size_t n_commands;

/* What other programs call a command, where it is the same. */
static const char *const aliases[][2] = { { "ls", "models" }, { "list", "models" } };

const struct command *command_find(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(aliases); i++)
                if (strcmp(aliases[i][0], name) == 0)
                        name = aliases[i][1];
        for (size_t i = 0; i < n_commands; i++)
                if (strcmp(commands[i]->name, name) == 0)
                        return commands[i];
        return NULL;
}

static int unknown_command(const char *fmt, ...) _printf_(1, 2);
static int unknown_command(const char *fmt, ...)
{
        _cleanup_(freep) char *text = NULL;
        va_list args;

        va_start(args, fmt);
        if (vasprintf(&text, fmt, args) < 0)
                text = NULL;
        va_end(args);
        complain("%s (`tandem help` lists them)", text ? text : fmt);
        return ARGS_USAGE;
}

/* Words of other programs, and what they are called here. */
static const struct {
        const char *said, *is, *more;
} synonyms[] = {
        { "serve", "tandemd", " (`tandemd --user &`, or `sudo systemctl start tandemd.socket`)" },
        { "start", "tandemd", " (`tandemd --user &`, or `sudo systemctl start tandemd.socket`)" },
        { "delete", "rm", "" },
        { "remove", "rm", "" },
        { "download", "pull", "" },
        { "fetch", "pull", "" },
        { "get", "pull", "" },
        { "import", "add", "" },
        { "create", "add", "" },
        { "info", "show", "" },
        { "complete", "generate", "" },
        { "ask", "generate", " (with --chat)" },
        { "kill", "cancel", "" },
        { "embeddings", "embed", "" },
        { "rank", "rerank", "" },
        { "predict", "classify", "" },
        { "version", "--version", "" },
};

int command_complain_unknown(const char *name)
{
        struct tdm_suggestion near = tdm_suggest_for(name);
        const char *meant;

        for (size_t i = 0; i < TDM_ARRAY_SIZE(synonyms); i++)
                if (strcmp(name, synonyms[i].said) == 0)
                        return unknown_command("there is no command '%s'; did you mean %s?%s", name, synonyms[i].is,
                                               synonyms[i].more);
        for (size_t i = 0; i < n_commands; i++)
                tdm_suggest(&near, commands[i]->name);
        meant = tdm_suggest_best(&near);
        if (meant)
                return unknown_command("there is no command '%.60s'; did you mean %s?", name, meant);
        return unknown_command("there is no command '%.60s'", name);
}
