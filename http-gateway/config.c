/* Flags, the listening address and the file of keys. The file must be this user's alone: a key that others can read
 * keeps nobody out, and who can write the file lets in whom it likes.
 *
 * A key's label tells the daemon for whom a request is. It follows from the key's name, so that it is the same after a
 * restart. A key without a name gets a label that nothing else ever has: neither a line's number, which another key has
 * when the file is edited, nor anything that is made from the key, which is secret. */
#include "http-gateway/config.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <getopt.h>
#include <netdb.h>
#include <sys/random.h>
#include <sys/stat.h>

const char config_help[] =
        "usage: tandem-http [OPTION]...\n"
        "Answers requests of OpenAI's, Anthropic's and Ollama's APIs with what tandemd generates.\n"
        "\n"
        "  --socket PATH           tandemd's socket (default: $TANDEM_SOCKET, the user's, the system's)\n"
        "  --listen ADDRESS:PORT   default 127.0.0.1:11434; any other than a loopback address needs keys\n"
        "  --api-key-file FILE     a key a line, or NAME KEY; mode 0600; who has one name shares quotas and caches\n"
        "  --without-keys          listen beyond loopback without keys: everybody who reaches the port may ask\n"
        "  --without-page          no chat page for browsers at /\n"
        "  --host NAME             a name under which clients may reach this machine, or *.SUFFIX; may be repeated\n"
        "  --origin ORIGIN         a web page or app that may ask (app://obsidian.md, app://*); may be repeated\n"
        "  --request-timeout S     seconds in which a request has to come whole (60)\n"
        "  --idle-timeout S        seconds that a connection may wait for its next request (75)\n"
        "  --peers FILE            gateways that go on with a job when the daemon here has died: http://ADDRESS:PORT "
        "[KEY]\n"
        "                          a line; mode 0600\n"
        "  --list-parameters       print what each request may contain, as Markdown\n"
        "  --who-has ADDRESS:PORT  say which process has this port, and how to move Tandem's\n"
        "  --help, --version\n";

static bool is_loopback(const struct sockaddr_storage *address)
{
        if (address->ss_family == AF_INET)
                return ntohl(((const struct sockaddr_in *)address)->sin_addr.s_addr) >> 24 == 127;
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)address)->sin6_addr);
}

bool config_parse_address(const char *text, struct sockaddr_storage *ret, socklen_t *ret_size)
{
        const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV | AI_PASSIVE,
                                        .ai_socktype = SOCK_STREAM };
        const char *colon = strrchr(text, ':');
        struct addrinfo *found = NULL;
        char host[64];
        size_t n;

        if (!colon || colon == text || strlen(colon + 1) == 0)
                return false;
        n = (size_t)(colon - text);
        if (n >= 2 && text[0] == '[' && colon[-1] == ']')
                snprintf(host, sizeof(host), "%.*s", (int)TDM_MIN(n - 2, sizeof(host) - 1), text + 1);
        else
                snprintf(host, sizeof(host), "%.*s", (int)TDM_MIN(n, sizeof(host) - 1), text);
        if (strcmp(host, "localhost") == 0)
                snprintf(host, sizeof(host), "127.0.0.1");
        if (strspn(colon + 1, "0123456789") != strlen(colon + 1) || strtoul(colon + 1, NULL, 10) > 65535 ||
            getaddrinfo(host, colon + 1, &hints, &found) != 0 || !found)
                return false;
        memcpy(ret, found->ai_addr, found->ai_addrlen);
        *ret_size = found->ai_addrlen;
        freeaddrinfo(found);
        return true;
}

static int parse_listen(struct config *c, struct tdm_error *err)
{
        if (!config_parse_address(c->listen, &c->address, &c->address_size))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "--listen takes ADDRESS:PORT, not %.100s", c->listen);
        c->loopback = is_loopback(&c->address);
        return 0;
}

static int make_label(struct config *c, struct api_key *k, const char *name, unsigned number, struct tdm_error *err)
{
        uint64_t unique;

        if (!name) {
                if (getrandom(&unique, sizeof(unique), 0) != sizeof(unique))
                        return tdm_error_set(err, -errno, "no random numbers: %s", strerror(errno));
                snprintf(k->label, sizeof(k->label), "unnamed:%016llx", (unsigned long long)unique);
                return 0;
        }
        for (const char *p = name; *p; p++)
                if (*p <= ' ' || *p >= 127 || strlen(name) > MAX_KEY_NAME_BYTES)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                             "%s:%u: a key's name has at most %u printing ASCII characters",
                                             c->key_file, number, MAX_KEY_NAME_BYTES);
        snprintf(k->label, sizeof(k->label), "key:%s", name);
        return 0;
}

/* "KEY" or "NAME KEY"; empty lines and those with # in front are skipped. */
static int take_key(struct config *c, char *line, unsigned number, struct tdm_error *err)
{
        struct api_key *k;
        char *first = strtok(line, " \t\r\n"), *second = strtok(NULL, " \t\r\n");
        const char *key = second ? second : first;

        if (!first || first[0] == '#')
                return 0;
        if (strtok(NULL, " \t\r\n"))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%u: a line is KEY or NAME KEY", c->key_file, number);
        if (strlen(key) < 8 || strlen(key) >= MAX_KEY_BYTES)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%u: a key has 8 to %u bytes, this one has %zu",
                                     c->key_file, number, MAX_KEY_BYTES - 1, strlen(key));
        if (c->n_keys == MAX_KEYS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: more than %u keys", c->key_file, MAX_KEYS);
        for (unsigned i = 0; i < c->n_keys; i++)
                if (strcmp(c->keys[i].key, key) == 0)
                        return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%u: this key stands in the file twice",
                                             c->key_file, number);
        k = &c->keys[c->n_keys++];
        memcpy(k->key, key, strlen(key));
        return make_label(c, k, second ? first : NULL, number, err);
}

/* systemd's credentials are shared with the unit by an access list, which shows as a group's right. */
static bool is_credential(const char *path)
{
        const char *folder = getenv("CREDENTIALS_DIRECTORY");
        size_t n = folder ? strlen(folder) : 0;

        return n > 1 && strncmp(path, folder, n) == 0 && path[n] == '/' && !strstr(path, "/../");
}

/* A file of secrets, by lines. */
static int read_lines(struct config *c, const char *path,
                      int (*take)(struct config *c, char *line, unsigned number, struct tdm_error *err),
                      struct tdm_error *err)
{
        _cleanup_(closep) int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
        _cleanup_(fclosep) FILE *f = NULL;
        char line[1024];
        struct stat st;
        unsigned number = 0;

        if (fd < 0 || fstat(fd, &st) < 0)
                return tdm_error_set(err, -errno, "cannot read the keys in %s: %s", path, strerror(errno));
        if (!S_ISREG(st.st_mode))
                return tdm_error_set(err, TDM_E_DENIED, "%s is no regular file", path);
        if (st.st_uid != geteuid() && !is_credential(path))
                return tdm_error_set(err, TDM_E_DENIED,
                                     "%s belongs to user %u, not to user %u, who runs tandem-http; give it to that one",
                                     path, (unsigned)st.st_uid, (unsigned)geteuid());
        if (st.st_mode & 077 && !is_credential(path))
                return tdm_error_set(err, TDM_E_DENIED,
                                     "%s can be read by others than its owner (mode %04o); chmod 600 it, and make new "
                                     "keys",
                                     path, (unsigned)st.st_mode & 07777);
        f = fdopen(fd, "r");
        if (!f)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        steal_fd(&fd);
        while (fgets(line, sizeof(line), f)) {
                bool whole = strchr(line, '\n') || feof(f);
                int r;

                number++;
                r = whole ? take(c, line, number, err) :
                            tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%u: the line is too long", path, number);
                explicit_bzero(line, sizeof(line));
                if (r != 0)
                        return r;
        }
        return 0;
}

static int read_keys(struct config *c, struct tdm_error *err)
{
        int r;

        c->keys = calloc(MAX_KEYS, sizeof(*c->keys));
        if (!c->keys)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = read_lines(c, c->key_file, take_key, err);
        if (r == 0 && c->n_keys == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s holds no key", c->key_file);
        return r;
}

/* "http://ADDRESS:PORT" or "http://ADDRESS:PORT KEY" */
static int take_peer(struct config *c, char *line, unsigned number, struct tdm_error *err)
{
        char *url = strtok(line, " \t\r\n"), *key = strtok(NULL, " \t\r\n");
        struct peer_address *p;
        size_t n;

        if (!url || url[0] == '#')
                return 0;
        if (strtok(NULL, " \t\r\n") || strncmp(url, "http://", 7) != 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%u: a line is http://ADDRESS:PORT [KEY]", c->peer_file,
                                     number);
        if (key && (strlen(key) < 8 || strlen(key) >= MAX_KEY_BYTES))
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s:%u: a key has 8 to %u bytes, this one has %zu",
                                     c->peer_file, number, MAX_KEY_BYTES - 1, strlen(key));
        if (c->n_peers == MAX_PEERS)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s: more than %u peers", c->peer_file, MAX_PEERS);
        p = &c->peers[c->n_peers];
        url += 7;
        n = strlen(url);
        if (n > 0 && url[n - 1] == '/')
                url[--n] = '\0';
        if (n >= sizeof(p->name) || !config_parse_address(url, &p->address, &p->address_size))
                return tdm_error_set(err, TDM_E_BAD_REQUEST,
                                     "%s:%u: %.80s is not an address and a port; names are not looked up", c->peer_file,
                                     number, url);
        memcpy(p->name, url, n + 1);
        if (key)
                memcpy(p->key, key, strlen(key) + 1);
        c->n_peers++;
        return 0;
}

static int read_peers(struct config *c, struct tdm_error *err)
{
        int r;

        c->peers = calloc(MAX_PEERS, sizeof(*c->peers));
        if (!c->peers)
                return tdm_error_set(err, -ENOMEM, "out of memory");
        r = read_lines(c, c->peer_file, take_peer, err);
        if (r == 0 && c->n_peers == 0)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "%s holds no peer", c->peer_file);
        return r;
}

static int take_seconds(const char *text, const char *flag, unsigned *ret, struct tdm_error *err)
{
        char *end;
        unsigned long v = strtoul(text, &end, 10);

        if (*text < '0' || *text > '9' || *end || v < 1 || v > 86400)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "--%s takes 1 to 86400 seconds, not %.40s", flag, text);
        *ret = (unsigned)v;
        return 0;
}

static int take_name(const char **names, unsigned *n, const char *flag, const char *name, struct tdm_error *err)
{
        if (*n == MAX_NAMES || !*name)
                return tdm_error_set(err, TDM_E_BAD_REQUEST, "--%s takes at most %u names, none of them empty", flag,
                                     MAX_NAMES);
        names[(*n)++] = name;
        return 0;
}

static int parse_flags(struct config *c, int argc, char **argv, struct tdm_error *err)
{
        enum {
                SOCKET = 256,
                LISTEN,
                KEYS,
                WITHOUT,
                WITHOUT_PAGE,
                HOST,
                ORIGIN,
                REQUEST,
                IDLE,
                PEERS,
                LIST,
                WHO_HAS,
                HELP,
                VERSION
        };
        static const struct option options[] = {
                { "socket", required_argument, NULL, SOCKET },
                { "listen", required_argument, NULL, LISTEN },
                { "api-key-file", required_argument, NULL, KEYS },
                { "without-keys", no_argument, NULL, WITHOUT },
                { "without-page", no_argument, NULL, WITHOUT_PAGE },
                { "host", required_argument, NULL, HOST },
                { "origin", required_argument, NULL, ORIGIN },
                { "request-timeout", required_argument, NULL, REQUEST },
                { "idle-timeout", required_argument, NULL, IDLE },
                { "peers", required_argument, NULL, PEERS },
                { "list-parameters", no_argument, NULL, LIST },
                { "who-has", required_argument, NULL, WHO_HAS },
                { "help", no_argument, NULL, HELP },
                { "version", no_argument, NULL, VERSION },
                { 0 },
        };
        int r = 0, option;

        opterr = 0;
        while (r == 0 && (option = getopt_long(argc, argv, "", options, NULL)) != -1)
                switch (option) {
                case SOCKET:
                        c->socket = optarg;
                        break;
                case LISTEN:
                        c->listen = optarg;
                        break;
                case KEYS:
                        c->key_file = optarg;
                        break;
                case WITHOUT:
                        c->without_keys = true;
                        break;
                case WITHOUT_PAGE:
                        c->without_page = true;
                        break;
                case HOST:
                        r = take_name(c->hosts, &c->n_hosts, "host", optarg, err);
                        break;
                case ORIGIN:
                        r = take_name(c->origins, &c->n_origins, "origin", optarg, err);
                        break;
                case REQUEST:
                        r = take_seconds(optarg, "request-timeout", &c->request_timeout_s, err);
                        break;
                case IDLE:
                        r = take_seconds(optarg, "idle-timeout", &c->idle_timeout_s, err);
                        break;
                case PEERS:
                        c->peer_file = optarg;
                        break;
                case LIST:
                        c->list_parameters = true;
                        break;
                case WHO_HAS:
                        c->who_has = optarg;
                        break;
                case HELP:
                        c->help = true;
                        break;
                case VERSION:
                        c->version = true;
                        break;
                default:
                        r = tdm_error_set(err, TDM_E_BAD_REQUEST,
                                          "%.60s is not an option or lacks its value; see --help", argv[optind - 1]);
                }
        if (r == 0 && optind < argc)
                r = tdm_error_set(err, TDM_E_BAD_REQUEST, "%.60s is not an option; see --help", argv[optind]);
        return r;
}

int config_load(struct config *c, int argc, char **argv, struct tdm_error *err)
{
        int r;

        c->listen = "127.0.0.1:11434";
        c->request_timeout_s = 60;
        c->idle_timeout_s = 75;
        r = parse_flags(c, argc, argv, err);
        if (r != 0 || c->help || c->version || c->list_parameters || c->who_has)
                return r;
        r = parse_listen(c, err);
        if (r == 0 && c->key_file)
                r = read_keys(c, err);
        if (r == 0 && c->peer_file)
                r = read_peers(c, err);
        if (r == 0 && !c->loopback && c->n_keys == 0 && !c->without_keys)
                r = tdm_error_set(
                        err, TDM_E_BAD_REQUEST,
                        "%s can be reached from other machines: give --api-key-file, or --without-keys to let "
                        "everybody in",
                        c->listen);
        return r;
}

void config_deinit(struct config *c)
{
        if (c->keys)
                explicit_bzero(c->keys, MAX_KEYS * sizeof(*c->keys));
        free(c->keys);
        if (c->peers)
                explicit_bzero(c->peers, MAX_PEERS * sizeof(*c->peers));
        free(c->peers);
        *c = (struct config){ 0 };
}
