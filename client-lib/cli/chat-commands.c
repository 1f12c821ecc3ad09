/* What begins with / in a chat: commands that change what the next message goes to, and keep conversations. */
#include "client-lib/cli/chat.h"
#include "client-lib/cli/typed-path.h"
#include "common/suggest.h"

#include <inttypes.h>

static void say_line(const char *text)
{
        if (term_stdin_tty)
                out_puts(text);
        out_flush();
}

/* A copy that lives as long as the chat: options point to it. */
static const char *keep_text(struct chat *chat, const char *text)
{
        char *copy = strdup(text);
        const char **items = realloc(chat->owned.items, (chat->owned.n + 1) * sizeof(*items));

        if (items)
                chat->owned.items = items;
        if (!copy || !items) {
                free(copy);
                complain("no memory for '%.40s'", text);
                return NULL;
        }
        chat->owned.items[chat->owned.n++] = copy;
        return copy;
}

/* The model that messages go to, as the daemon lists it. NULL: it cannot be told. */
static const struct tandem_model *listed_model(const struct chat *chat, const struct tandem_model_list *list)
{
        const char *asked = chat->given.job.options.model;
        _cleanup_(freep) char *path = asked && strchr(asked, '/') ? realpath(asked, NULL) : NULL;

        for (size_t i = 0; i < list->n_models; i++) {
                const struct tandem_model *m = list->models[i];

                if (asked ? strcmp(m->path, path ? path : "") == 0 || strcmp(m->name, asked) == 0 : m->is_default)
                        return m;
        }
        return NULL;
}

void chat_introduce_model(struct chat *chat)
{
        struct tandem_model_list *list;
        const struct tandem_model *m;
        struct tandem_error err;

        if (tandem_list_models(chat->tandem, &list, &err) != TANDEM_OK)
                return; /* the first message says what is wrong */
        m = listed_model(chat, list);
        out_lines(true);
        if (m)
                out_printf("%s answers", term_safe(m->name));
        if (m && m->context > 0)
                out_printf(", with a context of %" PRIu32 " tokens", m->context);
        if (m && *m->placement)
                out_printf(" (%s)", term_safe(m->placement));
        out_printf("%s/help lists commands, /bye or Ctrl-D leaves.\n", m ? ". " : "");
        out_lines(false);
        if (m && (strcmp(m->chat, "none") == 0))
                complain("%s has no chat template, so it cannot answer messages: /model NAME takes another model, "
                         "/models lists them, and `tandem generate -m %s` continues raw text",
                         m->name, m->name);
        else if (m && *m->chat && strcmp(m->chat, "jinja") != 0)
                complain("%s cannot answer messages, because of %s: /model NAME takes another model, /models lists "
                         "them, and `tandem generate -m %s` continues raw text",
                         m->name, m->chat, m->name);
        tandem_model_list_free(list);
}

void chat_complain_model(const struct chat *chat, const struct tandem_error *err, const char *name)
{
        if (chat->reader && with_person())
                complain_model_with(err, name, "/models lists what there is; /model ./FILE.gguf takes a file");
        else
                complain_model(err, name);
}

bool chat_take_model(struct chat *chat, const char *name)
{
        const char *asked = cli_model(chat->tandem, name), *shown = name ? strrchr(name, '/') : NULL;
        struct tandem_error err;
        uint32_t *ids;
        size_t n;

        if (term_stdin_tty) {
                progress_show("looking for %s…", shown ? term_safe(shown + 1) : name ? term_safe(name) : "the model");
                if (tandem_tokenize(chat->tandem, asked, "", 0, 0, &ids, &n, &err) != TANDEM_OK) {
                        chat_complain_model(chat, &err, name);
                        return false;
                }
                progress_clear();
                tandem_free(ids);
        }
        if (asked && asked != name)
                asked = keep_text(chat, asked);
        chat->given.job.options.model = asked;
        chat->given.model = chat->progress.model = name;
        return true;
}

static void set_model(struct chat *chat, const char *name)
{
        const char *kept = keep_text(chat, name);
        struct tandem_error err;

        if (!kept)
                return;
        if (!chat_be_connected(chat, &err))
                complain_error(&err);
        else if (chat_take_model(chat, kept) && term_stdin_tty)
                out_printf("Now: %s. The next message goes to this model.\n", term_safe(name));
        out_flush();
}

static void list_models(struct chat *chat, const char *unused)
{
        struct tandem_model_list *answer;
        struct model_listing listing;
        struct tandem_error err;

        if (!chat_be_connected(chat, &err) || tandem_list_models(chat->tandem, &answer, &err) != TANDEM_OK) {
                complain_error(&err);
                return;
        }
        if (model_listing_make(&listing, answer)) {
                for (size_t i = 0; i < listing.list.n_models; i++)
                        out_printf("%s %s, %s\n", listing.list.models[i]->is_default ? "*" : " ",
                                   term_safe(listing.list.models[i]->name), term_safe(listing.list.models[i]->state));
                model_listing_free(&listing);
        }
        tandem_model_list_free(answer);
        out_flush();
}

static void set_system(struct chat *chat, const char *text)
{
        if (conversation_set_system(&chat->said, text))
                say_line(*text ? "The system message is set.\n" : "There is no system message now.\n");
}

/* Thinking can be set for the next model too. Where this one cannot think, it is said what that does. */
static void say_set(struct chat *chat, bool is_thinking)
{
        const char *cure = is_thinking ? settings_to_stop_thinking(&chat->given.job) : NULL;
        struct tandem_model_list *list = NULL;
        const struct tandem_model *m = NULL;
        struct tandem_error err;

        if (cure && chat_be_connected(chat, &err) && tandem_list_models(chat->tandem, &list, &err) == TANDEM_OK)
                m = listed_model(chat, list);
        if (m && *m->capabilities && !strstr(m->capabilities, "thinking"))
                complain("set for another model: %s cannot think, and refuses messages until /set %s",
                         term_safe(m->name), cure);
        else
                say_line("Set.\n");
        tandem_model_list_free(list);
}

/* "temp 0.2": an option of a job, by the name and range that the command line has. Ollama says "parameter temperature
 * 0.2" and "system TEXT". */
static void set_option(struct chat *chat, const char *text)
{
        struct arg_group group = { .base = &chat->given.job };
        bool was_given;
        const char *value;
        _cleanup_(freep) char *flag = NULL;
        char *words[3] = { (char *)(uintptr_t) "/set" };
        unsigned n_positional;
        int n_words = 2;

        if (strncmp(text, "parameter ", 10) == 0)
                text += 10 + strspn(text + 10, " ");
        text += strspn(text, "-"); /* as on the command line */
        if (strncmp(text, "system ", 7) == 0) {
                set_system(chat, strcmp(text + 7, "default") == 0 ? "" : text + 7);
                return;
        }
        if (!*text) {
                settings_list(&chat->given.job);
                return;
        }
        value = strchr(text, ' ');
        if (settings_is_for_json(text, value ? (size_t)(value - text) : strlen(text))) {
                complain("a chat shows no log-probabilities; `tandem generate --json` does");
                return;
        }
        if (!value && settings_explain(&chat->given.job, text, strlen(text)))
                return;
        if (value && settings_switch(&chat->given.job, text, (size_t)(value - text), value + strspn(value, " "))) {
                say_line("Set.\n");
                return;
        }
        if (value && strcmp(value + strspn(value, " "), "default") == 0 &&
            settings_take_back(&chat->given.job, text, (size_t)(value - text))) {
                say_line("Taken back.\n");
                return;
        }
        was_given = settings_is_given(&chat->given.job, text, value ? (size_t)(value - text) : strlen(text));
        group.args = job_args_table(JOB_ARGS_ALL, &group.n_args);
        if (asprintf(&flag, "%s%.*s", text[1] == ' ' || !text[1] ? "-" : "--",
                     (int)(value ? value - text : (ptrdiff_t)strlen(text)), text) < 0) {
                flag = NULL;
                return;
        }
        words[1] = flag;
        if (value) {
                words[2] = (char *)(uintptr_t)keep_text(chat, value + 1);
                n_words += words[2] != NULL;
        }
        if (args_parse(&group, 1, n_words, words, NULL, 0, &n_positional) != ARGS_OK)
                return;
        if (job_args_finish(&chat->given.job))
                say_set(chat, strncmp(text, "think", 5) == 0);
        else if (!was_given) /* a file that cannot be read; one that was read before counts on */
                settings_take_back(&chat->given.job, text, value ? (size_t)(value - text) : strlen(text));
}

static void set_thinking(struct chat *chat, const char *value)
{
        _cleanup_(freep) char *option = NULL;

        if (asprintf(&option, "think%s%s", *value ? " " : "", value) < 0)
                option = NULL;
        if (option)
                set_option(chat, option);
}

/* True: complained. */
static bool is_blind(struct chat *chat)
{
        struct tandem_model_list *list;
        const struct tandem_model *m;
        struct tandem_error err;
        bool blind;

        if (!chat_be_connected(chat, &err) || tandem_list_models(chat->tandem, &list, &err) != TANDEM_OK)
                return false; /* the next message says what is wrong */
        m = listed_model(chat, list);
        blind = m && *m->capabilities && !strstr(m->capabilities, "vision");
        if (blind)
                complain("%s takes no pictures: it is a model of texts alone, or its projector mmproj-%s.gguf does not "
                         "lie beside it, or does not fit. /model takes another model",
                         term_safe(m->name), term_safe(m->name));
        tandem_model_list_free(list);
        return blind;
}

/* One file as it is typed, or several as a shell takes words. */
static bool read_images(const char *text, struct cli_pictures *ret)
{
        size_t size = strlen(text), n;
        char *path;

        while (size > 0 && text[size - 1] == ' ')
                size--;
        path = typed_plain(text, size);
        if (path && access(path, F_OK) == 0) {
                struct cli_picture *picture = cli_picture_read(path);

                free(path);
                return picture && cli_pictures_add(ret, picture, 0);
        }
        free(path);
        for (size_t at = 0; at < size; at += n + strspn(text + at + n, " ")) {
                struct cli_picture *picture;

                n = typed_word(text + at, size - at, &path);
                if (n == 0) {
                        complain("%.*s names no file", (int)(size - at), text + at);
                        return false;
                }
                picture = cli_picture_read(path);
                free(path);
                if (!picture || !cli_pictures_add(ret, picture, 0))
                        return false;
        }
        return true;
}

static void add_image(struct chat *chat, const char *text)
{
        _cleanup_(cli_pictures_free) struct cli_pictures more = { 0 };
        _cleanup_(freep) char *line = NULL;
        size_t n = chat->waiting.n;

        if (!*text) {
                cli_pictures_free(&chat->waiting);
                say_line(n > 0 ? "The next message has no pictures.\n" : "No picture waits for the next message.\n");
                return;
        }
        if (!is_blind(chat) && read_images(text, &more) && cli_pictures_add_all(&chat->waiting, &more)) {
                chat_tell_waiting(chat, n);
                return;
        }
        chat->lost_picture = true;
        if (asprintf(&line, "/image %s", text) < 0)
                line = NULL;
        if (line)
                line_offer(chat->reader, line);
}

static void toggle_stats(struct chat *chat, const char *unused)
{
        chat->stats = !chat->stats;
        say_line(chat->stats ? "A line about each answer's speed is shown.\n" : "No line about each answer's speed.\n");
}

static void reset_conversation(struct chat *chat, const char *unused)
{
        conversation_cut(&chat->said, conversation_has_system(&chat->said));
        say_line("A new conversation.\n");
}

/* A file as it was typed: no shell has taken quotes away and put the home folder in. To be freed. NULL: complained. */
static char *typed_path(const char *text)
{
        size_t n = strlen(text);
        const char *home = "";
        char *path = NULL;

        if (n >= 2 && (text[0] == '"' || text[0] == '\'') && text[n - 1] == text[0])
                text++, n -= 2;
        if (n > 1 && strncmp(text, "~/", 2) == 0 && getenv("HOME")) {
                home = getenv("HOME");
                text++, n--;
        }
        if (n == 0)
                complain("a file has to be named");
        else if (asprintf(&path, "%s%.*s", home, (int)n, text) < 0)
                path = NULL;
        return path;
}

static void save_conversation(struct chat *chat, const char *text)
{
        _cleanup_(freep) char *path = typed_path(text);

        if (path && conversation_save(&chat->said, path))
                say_line("Saved.\n");
}

/* The last question with what was answered, as they stood on the screen. */
static void show_last_turn(const struct conversation *c)
{
        size_t at = conversation_last_question(c);

        if (at > conversation_has_system(c)) {
                term_style(TERM_DIM);
                out_printf("… %zu %s before\n", at - conversation_has_system(c),
                           at - conversation_has_system(c) == 1 ? "message" : "messages");
                term_style(0);
        }
        for (size_t i = at; i < c->n; i++) {
                struct markdown markdown = { 0 };

                if (strcmp(c->messages[i].role, "user") == 0) {
                        out_puts("> ");
                        for (size_t k = 0; k < c->pictures[i].n; k++)
                                out_printf("[%s] ", picture_text(c->pictures[i].items[k].picture));
                        out_text(c->messages[i].text, c->messages[i].size);
                } else {
                        markdown_write(&markdown, c->messages[i].text, c->messages[i].size);
                        markdown_end(&markdown);
                }
                if (out_mid_line())
                        out_puts("\n");
        }
        out_puts("\n");
}

static void load_conversation(struct chat *chat, const char *text)
{
        _cleanup_(freep) char *path = typed_path(text);

        if (!path || !conversation_load(&chat->said, path))
                return;
        if (term_stdin_tty)
                out_printf("Loaded: %zu messages; the conversation goes on where it was saved.\n", chat->said.n);
        if (with_person())
                show_last_turn(&chat->said);
        out_flush();
}

/* False, said: there is none. */
static bool find_question(const struct chat *chat, size_t *ret_at)
{
        *ret_at = conversation_last_question(&chat->said);
        if (*ret_at < chat->said.n)
                return true;
        complain("there is no message yet");
        return false;
}

static void retry_answer(struct chat *chat, const char *unused)
{
        struct cli_pictures pictures = { 0 };
        size_t at, size;
        _cleanup_(freep) char *text = NULL;

        if (!find_question(chat, &at))
                return;
        size = chat->said.messages[at].size;
        text = malloc(size + 1);
        if (text)
                memcpy(text, chat->said.messages[at].text, size + 1);
        if (!text)
                complain("no memory for the message");
        else if (cli_pictures_add_all(&pictures, &chat->said.pictures[at]))
                chat->asks = chat_replace(chat, at, text, size, &pictures);
        else
                cli_pictures_free(&pictures);
}

/* The line that is offered begins with another / where the message begins with one. */
static void edit_message(struct chat *chat, const char *text)
{
        struct cli_pictures pictures = { 0 };
        _cleanup_(freep) char *line = NULL;
        const char *was;
        size_t at;

        if (!find_question(chat, &at))
                return;
        was = chat->said.messages[at].text;
        if (*text) {
                if (!cli_pictures_add_all(&pictures, &chat->said.pictures[at]))
                        cli_pictures_free(&pictures);
                for (size_t i = 0; i < pictures.n; i++)
                        pictures.items[i].offset = 0;
                chat->asks = chat_replace(chat, at, text, strlen(text), &pictures);
        } else if (!line_reader_edits(chat->reader)) {
                complain("/edit needs the message's new TEXT where lines are not edited");
        } else if (asprintf(&line, "%s%s", was[0] == '/' ? "/" : "", was) < 0) {
                line = NULL;
                complain("no memory for the message");
        } else {
                line_offer(chat->reader, line);
                chat->edits = at + 1;
        }
}

static void chat_help(struct chat *chat, const char *unused);

static const struct chat_command {
        const char *names[3];
        const char *value; /* NULL: takes none */
        bool may_lack_value;
        const char *brief;
        void (*run)(struct chat *chat, const char *value); /* NULL: leaves */
} chat_commands[] = {
        { { "/help", "/?" }, NULL, false, "this text", chat_help },
        { { "/reset", "/clear" },
          NULL,
          false,
          "forget the conversation (the system message stays)",
          reset_conversation },
        { { "/retry" }, NULL, false, "ask the last message again", retry_answer },
        { { "/edit" }, "TEXT", true, "ask with TEXT in its place; without TEXT: it can be edited", edit_message },
        { { "/save" }, "FILE", false, "keep the conversation in a file", save_conversation },
        { { "/load" }, "FILE", false, "go on with a conversation that was saved", load_conversation },
        { { "/system" }, "TEXT", true, "a system message before the conversation; without TEXT: none", set_system },
        { { "/image" },
          "FILE",
          true,
          "a picture for the next message (a file can be dropped into a line, too); without FILE: none",
          add_image },
        { { "/think" }, "LEVEL", true, "off, on, low, medium or high; without LEVEL: what it is", set_thinking },
        { { "/models", "/list" }, NULL, false, "the models there are", list_models },
        { { "/model" }, "MODEL", false, "talk to another model, with the same conversation", set_model },
        { { "/set" },
          "OPTION VALUE",
          true,
          "an option as on the command line: /set temp 0.2; /set temp default takes it back; alone: what is set",
          set_option },
        { { "/stats" }, NULL, false, "show the speed after each answer, or stop showing it", toggle_stats },
        { { "/bye", "/quit", "/exit" }, NULL, false, "leave (Ctrl-D does, too)", NULL },
};

static void chat_help(struct chat *chat, const char *unused)
{
        out_lines(true);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(chat_commands); i++) {
                const struct chat_command *c = &chat_commands[i];
                char names[64];

                snprintf(names, sizeof(names), "%s%s%s%s%s%s%s", c->names[0], c->names[1] ? ", " : "",
                         c->names[1] ? c->names[1] : "", c->names[2] ? ", " : "", c->names[2] ? c->names[2] : "",
                         c->value ? " " : "", c->value ? c->value : "");
                out_printf("%-20s  %s\n", names, c->brief);
        }
        out_puts(
                "\"\"\"                   begins and ends a message of several lines; \\ at the end of a line goes on, "
                "too\n"
                "//                    at the beginning of a message stands for one /\n"
                "Ctrl-C                while an answer comes: stops it; at the prompt: drops the line, or warns and "
                "leaves\n");
        out_lines(false);
        out_flush();
}

bool chat_run_command(struct chat *chat, const char *line)
{
        size_t n = strcspn(line, " ");
        const char *value = line + n + strspn(line + n, " ");
        struct tdm_suggestion near;
        const char *meant;
        char name[64];

        snprintf(name, sizeof(name), "%.*s", (int)TDM_MIN(n, sizeof(name) - 1), line);
        near = tdm_suggest_for(name);
        for (size_t i = 0; i < TDM_ARRAY_SIZE(chat_commands); i++)
                for (size_t j = 0; j < TDM_ARRAY_SIZE(chat_commands[i].names) && chat_commands[i].names[j]; j++) {
                        const struct chat_command *c = &chat_commands[i];

                        tdm_suggest(&near, c->names[j]);
                        if (strcmp(name, c->names[j]) != 0)
                                continue;
                        if (c->value && !*value && !c->may_lack_value)
                                complain("%s needs %s", name, c->value);
                        else if (!c->value && *value)
                                complain("%s takes nothing behind it", name);
                        else if (c->run)
                                c->run(chat, value);
                        else
                                return false;
                        return true;
                }
        meant = name[1] ? tdm_suggest_best(&near) : NULL;
        if (strcmp(name, "/show") == 0)
                complain("there is no command %s; `tandem show MODEL` in a shell says what a model is", name);
        else if (meant)
                complain("there is no command %s; did you mean %s?", name, meant);
        else
                complain("there is no command %s; /help lists them, and // begins a text with /", name);
        return true;
}
