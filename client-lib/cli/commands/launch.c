/* tandem launch: what a coding agent needs to work with the models here, printed for a shell or set for the agent that
 * it becomes.
 *
 * Settings are variables and arguments of one run. No file of the agent's is written: what a person has set there for
 * other models stays as it is. A key is told by a variable, never by an argument, which every user can read. */
#include "client-lib/cli/cli.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/time.h>

#define DEFAULT_URL "http://127.0.0.1:11434"
#define KEY_VARIABLE "TANDEM_API_KEY"
#define NO_KEY "none" /* a gateway without keys takes any; agents want one */
#define MAX_SETTINGS 12u
#define GATEWAY_SECONDS 30u /* for its answer whether it has a model */

struct launch_options {
        const char *model, *url;
        bool run;
};

extern const struct command command_launch;

struct setting {
        const char *name;
        char *value; /* NULL: the key */
};

/* One run of an agent. */
struct launch {
        const char *model, *url;
        uint32_t context; /* 0: not known */
        bool thinks;      /* as far as it is known */
        bool loaded;      /* all is known */
        struct setting settings[MAX_SETTINGS];
        size_t n_settings;
        char *args[MAX_SETTINGS]; /* in front of the caller's own */
        size_t n_args;
        bool failed; /* no memory */
};

static void launch_deinit(struct launch *l)
{
        for (size_t i = 0; i < l->n_settings; i++)
                free(l->settings[i].value);
        for (size_t i = 0; i < l->n_args; i++)
                free(l->args[i]);
}

static void launch_set(struct launch *l, const char *name, const char *value)
{
        char *copy = value ? strdup(value) : NULL;

        l->failed |= value && !copy;
        l->settings[l->n_settings++] = (struct setting){ .name = name, .value = copy };
}

static void launch_add(struct launch *l, const char *arg)
{
        l->args[l->n_args] = strdup(arg);
        l->failed |= !l->args[l->n_args];
        l->n_args += l->args[l->n_args] != NULL;
}

/* Takes over what a buffer holds, as the value of a variable, or as an argument (name NULL). */
static void launch_take(struct launch *l, const char *name, struct buf *b)
{
        buf_add(b, "", 1);
        if (b->failed)
                l->failed = true;
        else if (name)
                launch_set(l, name, b->data);
        else
                launch_add(l, b->data);
        buf_free(b);
        *b = (struct buf){ 0 };
}

/* Each size that Claude Code may ask for is this model. Its header that tells requests apart would make every prompt
 * begin differently, so nothing of it would be found in the prefix cache. */
static void set_up_claude(struct launch *l)
{
        static const char *const models[] = { "ANTHROPIC_MODEL", "ANTHROPIC_DEFAULT_OPUS_MODEL",
                                              "ANTHROPIC_DEFAULT_SONNET_MODEL", "ANTHROPIC_DEFAULT_HAIKU_MODEL",
                                              "CLAUDE_CODE_SUBAGENT_MODEL" };

        launch_set(l, "ANTHROPIC_BASE_URL", l->url);
        launch_set(l, "ANTHROPIC_AUTH_TOKEN", NULL);
        launch_set(l, "ANTHROPIC_API_KEY", ""); /* that of another account */
        for (size_t i = 0; i < TDM_ARRAY_SIZE(models); i++)
                launch_set(l, models[i], l->model);
        launch_set(l, "CLAUDE_CODE_ATTRIBUTION_HEADER", "0");
        launch_set(l, "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1");
}

/* -c takes TOML, whose strings are JSON's. */
static void set_up_codex(struct launch *l)
{
        struct buf b = { 0 };

        launch_set(l, KEY_VARIABLE, NULL);
        launch_add(l, "-c");
        buf_printf(&b,
                   "model_providers.tandem={name=\"Tandem\",wire_api=\"responses\",env_key=\"" KEY_VARIABLE
                   "\",base_url=\"%s/v1\"}",
                   l->url);
        launch_take(l, NULL, &b);
        launch_add(l, "-c");
        launch_add(l, "model_provider=\"tandem\"");
        launch_add(l, "-c");
        buf_puts(&b, "model=");
        json_text(&b, l->model, strlen(l->model));
        launch_take(l, NULL, &b);
        if (l->context == 0)
                return;
        launch_add(l, "-c");
        buf_printf(&b, "model_context_window=%u", l->context);
        launch_take(l, NULL, &b);
}

static void set_up_opencode(struct launch *l)
{
        _cleanup_(buf_freep) struct buf name = { 0 };
        struct buf b = { 0 };

        buf_puts(&name, "tandem/");
        buf_add(&name, l->model, strlen(l->model) + 1);
        l->failed |= name.failed;
        if (l->failed)
                return;
        buf_puts(&b, "{");
        json_field_string(&b, "model", name.data);
        json_field_string(&b, "small_model", name.data);
        buf_printf(&b,
                   ",\"provider\":{\"tandem\":{\"npm\":\"@ai-sdk/openai-compatible\",\"name\":\"Tandem\","
                   "\"options\":{\"baseURL\":\"%s/v1\",\"apiKey\":\"{env:" KEY_VARIABLE "}\"},\"models\":{",
                   l->url);
        json_key(&b, l->model);
        buf_puts(&b, "{\"tool_call\":true");
        if (l->thinks)
                buf_puts(&b, ",\"reasoning\":true");
        if (l->context > 0)
                buf_printf(&b, ",\"limit\":{\"context\":%u,\"output\":%u}", l->context, l->context / 4);
        buf_puts(&b, "}}}}}");
        launch_set(l, KEY_VARIABLE, NULL);
        launch_take(l, "OPENCODE_CONFIG_CONTENT", &b);
}

/* Parts of a name that an agent does not send as they are. It has no way to write them otherwise. */
static const char *const claude_rewrites[] = { "[1m]", "[2m]", NULL };      /* sizes of a context, which it takes off */
static const char *const opencode_rewrites[] = { "{env:", "{file:", NULL }; /* replaced before its JSON is read */

static const struct agent {
        const char *name, *title, *package;
        uint32_t prompt_tokens; /* its first prompt, about (docs/http-api.md) */
        void (*set_up)(struct launch *l);
        const char *const *rewrites; /* in any case of letters; NULL: none */
        const char *key_rewrites;    /* characters that a key may not have; "" */
} agents[] = {
        { "claude", "Claude Code", "@anthropic-ai/claude-code", 33000, set_up_claude, claude_rewrites, "" },
        { "codex", "Codex", "@openai/codex", 15000, set_up_codex, NULL, "" },
        { "opencode", "opencode", "opencode-ai", 12000, set_up_opencode, opencode_rewrites, "\"\\{" },
};

static const char *const agent_names[] = { "claude", "codex", "opencode", NULL };

static const struct agent *find_agent(const char *name)
{
        for (size_t i = 0; i < TDM_ARRAY_SIZE(agents); i++)
                if (strcmp(name, agents[i].name) == 0)
                        return &agents[i];
        return NULL;
}

/* ---- the model and the gateway ---- */

/* The model of this name, or the default, as the daemon lists it: *ret_name is to be freed, and NULL if there is none.
 * An exit status. */
static int list_launch_model(struct tandem *tandem, const char *name, char **ret_name, struct launch *l)
{
        const struct tandem_model *found = NULL;
        struct tandem_model_list *list;
        struct tandem_error err;
        bool copied = true;

        *ret_name = NULL;
        if (tandem_list_models(tandem, &list, &err) != TANDEM_OK)
                return complain_error(&err);
        for (size_t i = 0; i < list->n_models && !found; i++)
                if (name ? strcmp(list->models[i]->name, name) == 0 : list->models[i]->is_default)
                        found = list->models[i];
        if (found) {
                *ret_name = strdup(found->name);
                l->context = found->context;
                l->thinks = strstr(found->capabilities, "thinking") != NULL;
                l->loaded = found->capabilities[0] != '\0';
                copied = *ret_name != NULL;
        }
        tandem_model_list_free(list);
        return copied ? EXIT_OK : complain("no memory");
}

/* A model is loaded that is not yet: then it is known what it can do, and an agent's first prompt need not wait for
 * it. */
static int find_launch_model(struct cli *cli, const char *name, char **ret_name, struct launch *l)
{
        _cleanup_(tandem_closep) struct tandem *tandem = cli_connect(cli);
        _cleanup_(freep) char *found = NULL;
        struct tandem_error err;
        int status;

        if (!tandem)
                return EXIT_FAILED;
        status = list_launch_model(tandem, name, &found, l);
        if (status != EXIT_OK)
                return status;
        if (!found)
                return name ? complain("the daemon lists no model %s (see `tandem models`)", term_safe(name)) :
                              complain("there is no default model: name one with -m (see `tandem models`)");
        if (l->loaded) {
                *ret_name = steal_ptr(&found);
                return EXIT_OK;
        }
        progress_show("loading %s…", term_safe(found));
        if (tandem_load_model(tandem, found, &err) != TANDEM_OK)
                return complain_model(&err, found);
        progress_clear();
        return list_launch_model(tandem, found, ret_name, l);
}

/* HOST and PORT of http://HOST:PORT, which may have no path: each agent adds its own. */
static bool split_url(const char *url, char host[256], char port[8])
{
        const char *at, *colon;
        size_t n;

        if (strncmp(url, "http://", 7) != 0 && strncmp(url, "https://", 8) != 0)
                return false;
        at = strstr(url, "://") + 3;
        n = strlen(at);
        if (n == 0 || n > 255 || strspn(at, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-:[]") != n)
                return false;
        colon = strrchr(at, ':');
        if (colon && strchr(colon, ']'))
                colon = NULL;
        if (colon && (strlen(colon + 1) - 1 > 4 || strspn(colon + 1, "0123456789") != strlen(colon + 1)))
                return false;
        snprintf(port, 8, "%s", colon ? colon + 1 : strncmp(url, "https", 5) == 0 ? "443" : "80");
        n = colon ? (size_t)(colon - at) : n;
        if (at[0] == '[' && at[n - 1] == ']') {
                at++;
                n -= 2;
        }
        snprintf(host, 256, "%.*s", (int)n, at);
        return n > 0;
}

/* The key that an agent is told. */
static const char *agent_key(void)
{
        const char *key = getenv(KEY_VARIABLE);

        return key && *key ? key : NO_KEY;
}

/* How to start a gateway here: the program beside this one, in a build folder say, or the service that is installed. */
static const char *how_to_start_gateway(char *to, size_t size)
{
        char program[4096];

        if (cli_find_program("tandem-http", program, sizeof(program)) && strncmp(program, "/usr/", 5) != 0)
                snprintf(to, size, "`%.300s &`", program);
        else
                snprintf(to, size, "`sudo systemctl enable --now tandem-http.socket`");
        return to;
}

/* A connection, or EXIT_FAILED with *ret_fd -1. */
static int connect_gateway(const char *url, const char *host, const char *port, int *ret_fd)
{
        const struct addrinfo hints = { .ai_socktype = SOCK_STREAM };
        struct addrinfo *found = NULL;
        int fault = getaddrinfo(host, port, &hints, &found), error = ENOENT;
        char start[400];

        *ret_fd = -1;
        if (fault != 0)
                return complain("cannot find %s: %s", url, gai_strerror(fault));
        for (const struct addrinfo *a = found; a && *ret_fd < 0; a = a->ai_next) {
                _cleanup_(closep) int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);

                if (fd >= 0 && connect(fd, a->ai_addr, a->ai_addrlen) == 0)
                        *ret_fd = steal_fd(&fd);
                else
                        error = errno;
        }
        freeaddrinfo(found);
        return *ret_fd >= 0 ? EXIT_OK :
                              complain("no gateway answers at %s: %s; start one (%s), or say with --url where it is",
                                       url, strerror(error), how_to_start_gateway(start, sizeof(start)));
}

/* The number in the first line of an answer, 0 where it is none of HTTP, or a negative errno. */
static int read_http_status(int fd)
{
        char head[sizeof("HTTP/1.1 200")] = { 0 };
        size_t n = 0;

        while (n < sizeof(head) - 1) {
                ssize_t got = recv(fd, head + n, sizeof(head) - 1 - n, 0);

                if (got < 0 && errno == EINTR)
                        continue;
                if (got < 0)
                        return -errno;
                if (got == 0)
                        return 0;
                n += (size_t)got;
        }
        return strncmp(head, "HTTP/1.", 7) == 0 && head[8] == ' ' ? (int)strtoul(head + 9, NULL, 10) : 0;
}

/* Asks for the model with the agent's key. The answer's number, as read_http_status() tells it. */
static int ask_for_model(int fd, const char *url, const char *model)
{
        const struct timeval patience = { .tv_sec = GATEWAY_SECONDS };
        _cleanup_(buf_freep) struct buf b = { 0 };
        ssize_t sent;

        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
        buf_puts(&b, "GET /v1/models/");
        for (const char *p = model; *p; p++)
                buf_printf(&b, "%%%02X", (unsigned)(unsigned char)*p);
        buf_printf(&b, " HTTP/1.1\r\nHost: %s\r\nConnection: close\r\nAuthorization: Bearer ", strstr(url, "://") + 3);
        buf_puts(&b, agent_key());
        buf_puts(&b, "\r\n\r\n");
        if (b.failed)
                return -ENOMEM;
        sent = send(fd, b.data, b.size, MSG_NOSIGNAL);
        if (sent < 0)
                return -errno;
        return sent == (ssize_t)b.size ? read_http_status(fd) : -EAGAIN;
}

/* An agent whose server is not there, wants a key or lacks the model tries again and again for minutes, or does not say
 * what is wrong. Over TLS, which this program does not speak, only the first of these is seen. */
static int check_gateway(const char *url, const char *host, const char *port, const char *model)
{
        _cleanup_(closep) int fd = -1;
        int answer;

        for (const char *p = agent_key(); *p; p++)
                if ((unsigned char)*p < ' ' || *p == 0x7f)
                        return complain(KEY_VARIABLE " holds a control character, which no key has");
        if (connect_gateway(url, host, port, &fd) != EXIT_OK)
                return EXIT_FAILED;
        if (strncmp(url, "https", 5) == 0)
                return EXIT_OK;
        answer = ask_for_model(fd, url, model);
        if (answer == 200)
                return EXIT_OK;
        if (answer == 401)
                return strcmp(agent_key(), NO_KEY) == 0 ?
                               complain("the gateway at %s wants a key: set " KEY_VARIABLE, url) :
                               complain("the gateway at %s wants another key than that in " KEY_VARIABLE, url);
        if (answer == 404)
                return complain("the gateway at %s has no model %s", url, term_safe(model));
        if (answer == -EAGAIN)
                return complain("the gateway at %s did not answer within %u s", url, GATEWAY_SECONDS);
        if (answer < 0)
                return complain("cannot ask the gateway at %s: %s", url, strerror(-answer));
        if (answer == 0)
                return complain("what listens at %s does not answer as a gateway does", url);
        return complain("the gateway at %s answers %d when it is asked for the model %s; its log says why", url, answer,
                        term_safe(model));
}

/* ---- printing and starting ---- */

/* As one word of a shell. */
static void print_quoted(const char *text)
{
        if (*text &&
            strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789@%+=:,./_-") == strlen(text)) {
                out_puts(text);
                return;
        }
        out_puts("'");
        for (; *text; text++)
                if (*text == '\'')
                        out_puts("'\\''");
                else
                        out_write(text, 1);
        out_puts("'");
}

static int print_launch(const struct launch *l, const struct agent *agent, const char *const *more, size_t n_more)
{
        out_printf("# %s with the model %s at %s\n", agent->title, term_safe(l->model), l->url);
        for (size_t i = 0; i < l->n_settings; i++) {
                out_printf("export %s=", l->settings[i].name);
                if (l->settings[i].value)
                        print_quoted(l->settings[i].value);
                else
                        out_puts("\"${" KEY_VARIABLE ":-" NO_KEY "}\"");
                out_puts("\n");
        }
        out_puts(agent->name);
        for (size_t i = 0; i < l->n_args + n_more; i++) {
                out_puts(" ");
                print_quoted(i < l->n_args ? l->args[i] : more[i - l->n_args]);
        }
        out_puts("\n");
        return out_finish();
}

static int run_agent(const struct launch *l, const struct agent *agent, const char **more, size_t n_more)
{
        _cleanup_(freep) char **argv = calloc(l->n_args + n_more + 2, sizeof(*argv));
        size_t n = 0;

        if (!argv)
                return complain("no memory");
        argv[n++] = (char *)agent->name;
        for (size_t i = 0; i < l->n_args; i++)
                argv[n++] = l->args[i];
        for (size_t i = 0; i < n_more; i++)
                argv[n++] = (char *)more[i];
        for (size_t i = 0; i < l->n_settings; i++) {
                const char *value = l->settings[i].value ? l->settings[i].value : agent_key();

                if (setenv(l->settings[i].name, value, 1) < 0)
                        return complain("no memory");
        }
        execvp(agent->name, argv);
        if (errno == ENOENT)
                return complain("%s is not installed: npm install -g %s", agent->name, agent->package);
        return complain("cannot start %s: %s", agent->name, strerror(errno));
}

/* An agent that changes the name would ask for another model, and one that fills it in would send what a file or a
 * variable holds. */
static int check_names(const struct agent *agent, const char *model)
{
        const char *key = agent_key(), *found = strpbrk(key, agent->key_rewrites);

        for (size_t i = 0; agent->rewrites && agent->rewrites[i]; i++)
                if (strcasestr(model, agent->rewrites[i]))
                        return complain("%s cannot be told of the model %s: it does not send '%s' in a name as it is; "
                                        "give the model's file another name",
                                        agent->title, term_safe(model), agent->rewrites[i]);
        return found ? complain("%s cannot be told of the key in " KEY_VARIABLE ": it has a '%c'", agent->title,
                                *found) :
                       EXIT_OK;
}

static void warn_of_context(const struct launch *l, const struct agent *agent)
{
        if (l->context > 0 && l->context <= agent->prompt_tokens)
                complain("%s has a context of %u tokens; %s's first prompt takes about %u", term_safe(l->model),
                         l->context, agent->title, agent->prompt_tokens);
}

static int launch_agent(struct cli *cli, const struct launch_options *options, const char **words, unsigned n_words)
{
        struct launch l = { .url = options->url ? options->url : DEFAULT_URL };
        const struct agent *agent = n_words > 0 ? find_agent(words[0]) : NULL;
        _cleanup_(freep) char *found = NULL;
        char host[256], port[8];
        int status = EXIT_OK;

        if (n_words == 0)
                return args_usage_error("launch", "which agent: claude, codex or opencode?");
        if (!agent)
                return args_usage_error("launch", "'%.60s' is none of claude, codex, opencode", words[0]);
        if (!split_url(l.url, host, port))
                return args_usage_error("launch", "--url: '%.100s' is not http://HOST:PORT (without a path)", l.url);
        if (options->url && !options->model)
                return args_usage_error("launch", "with --url a model has to be named: -m MODEL");
        l.model = options->model;
        if (!options->url) {
                status = find_launch_model(cli, options->model, &found, &l);
                if (status == EXIT_OK && !found) /* it went while it was loaded */
                        status = complain("the daemon lists no such model any more (see `tandem models`)");
                l.model = found;
        }
        if (status == EXIT_OK)
                status = check_names(agent, l.model);
        if (status == EXIT_OK && options->run)
                status = check_gateway(l.url, host, port, l.model);
        if (status != EXIT_OK)
                return status;
        warn_of_context(&l, agent);
        agent->set_up(&l);
        status = l.failed     ? complain("no memory") :
                 options->run ? run_agent(&l, agent, words + 1, n_words - 1) :
                                print_launch(&l, agent, words + 1, n_words - 1);
        launch_deinit(&l);
        return status;
}

static int run_launch(struct cli *cli, int argc, char **argv)
{
        _cleanup_(freep) const char **words = calloc((size_t)argc, sizeof(*words));
        struct launch_options options = { 0 };
        unsigned n;
        int status;

        if (!words)
                return complain("no memory");
        if (cli_parse(cli, &command_launch, argc, argv, &options, words, (unsigned)argc, &n, &status))
                return status;
        return launch_agent(cli, &options, words, n);
}

static const struct arg args[] = {
        {
                .letter = 'm',
                .name = "model",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct launch_options, model),
                .value = "MODEL",
                .brief = "a name that `tandem models` lists",
                .more = "otherwise the default model",
                .offer = OFFER_MODELS,
        },
        {
                .name = "url",
                .range.type = TDM_VALUE_TEXT,
                .at = offsetof(struct launch_options, url),
                .value = "URL",
                .brief = "where tandem-http answers",
                .more = "otherwise " DEFAULT_URL "; with it -m is needed, and the daemon here is not asked",
        },
        {
                .name = "run",
                .at = offsetof(struct launch_options, run),
                .brief = "start the agent with these settings",
        },
};

const struct command command_launch = {
        .name = "launch",
        .summary = "settings for a coding agent, or the agent itself",
        .usage = "[-m MODEL] [--url URL] [--run] claude|codex|opencode [-- ARGS]",
        .about = "Prints what Claude Code, Codex or opencode needs to work with a model here: lines for a shell, the "
                 "last of which starts the agent. With --run nothing is printed, and the agent is started. ARGS are "
                 "the agent's own. No file is changed: settings hold for one run.\n"
                 "\n"
                 "The agent talks to tandem-http. Where that wants keys, set " KEY_VARIABLE " to one. Agents send "
                 "long prompts: a model needs a context of 65536 tokens or more for Claude Code, 32768 for the "
                 "others.",
        .examples = "  tandem launch claude\n"
                    "  tandem launch -m qwen3-4b --run opencode\n"
                    "  tandem launch --run codex -- exec 'say what this folder holds'",
        COMMAND_ARGS(args),
        .choices = agent_names,
        .run = run_launch,
};
