/* Every path there is. */
#include "http-gateway/anthropic.h"
#include "http-gateway/ollama.h"
#include "http-gateway/openai.h"
#include "http-gateway/page.h"
#include "http-gateway/takeover.h"

/* Whether a request needs one of the keys, where the gateway has keys. */
enum { NEEDS_KEY = false, NO_KEY = true };

static const struct route routes[] = {
        { "/", "GET", DIALECT_OLLAMA, NO_KEY, page_root },
        { "/health", "GET", DIALECT_OPENAI, NO_KEY, question_health },
        { "/metrics", "GET", DIALECT_OPENAI, NEEDS_KEY, question_metrics },
        { "/tokenize", "POST", DIALECT_OPENAI, NEEDS_KEY, question_tokenize },
        { "/props", "GET", DIALECT_OPENAI, NEEDS_KEY, llama_props },
        { "/slots", "GET", DIALECT_OPENAI, NEEDS_KEY, llama_slots },
        { TAKEOVER_PATH, "POST", DIALECT_OPENAI, NEEDS_KEY, takeover_generate },

        { "/v1/models", "GET", DIALECT_OPENAI, NEEDS_KEY, openai_models },
        { "/v1/models/", "GET", DIALECT_OPENAI, NEEDS_KEY, openai_model },
        { "/v1/chat/completions", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_chat },
        { "/chat/completions", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_chat }, /* of clients that leave out /v1 */
        { "/v1/completions", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_completions },
        { "/v1/responses", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_responses },
        { "/v1/embeddings", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_embeddings },
        { "/v1/rerank", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_rerank },
        { "/v2/rerank", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_rerank }, /* Cohere's */
        { "/rerank", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_rerank },
        { "/v1/reranking", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_rerank }, /* and the next one: llama-server's */
        { "/reranking", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_rerank },
        { "/classify", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_classify },    /* vLLM's */
        { "/v1/classify", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_classify }, /* SGLang's */
        { "/predict", "POST", DIALECT_OPENAI, NEEDS_KEY, openai_predict },      /* text-embeddings-inference's */

        { "/v1/messages", "POST", DIALECT_ANTHROPIC, NEEDS_KEY, anthropic_messages },
        { "/v1/messages/count_tokens", "POST", DIALECT_ANTHROPIC, NEEDS_KEY, anthropic_count_tokens },

        { "/api/version", "GET", DIALECT_OLLAMA, NEEDS_KEY, ollama_version },
        { "/api/tags", "GET", DIALECT_OLLAMA, NEEDS_KEY, ollama_tags },
        { "/api/show", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_show },
        { "/api/ps", "GET", DIALECT_OLLAMA, NEEDS_KEY, ollama_ps },
        { "/api/chat", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_chat },
        { "/api/generate", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_generate },
        { "/api/embed", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_embed },
        { "/api/embeddings", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_embed },
        { "/api/pull", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_manage },
        { "/api/push", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_manage },
        { "/api/create", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_manage },
        { "/api/copy", "POST", DIALECT_OLLAMA, NEEDS_KEY, ollama_manage },
        { "/api/delete", "DELETE", DIALECT_OLLAMA, NEEDS_KEY, ollama_manage },
};

static bool matches(const struct route *r, const char *path, char arg[256])
{
        size_t n = strlen(r->path);

        if (n > 1 && r->path[n - 1] == '/') {
                if (strncmp(path, r->path, n) != 0 || strlen(path + n) == 0 || strlen(path + n) > 255)
                        return false;
                memcpy(arg, path + n, strlen(path + n) + 1);
                return true;
        }
        return strcmp(path, r->path) == 0;
}

const struct route *routes_find(const char *method, const char *path, enum dialect *dialect, char arg[256],
                                char allow[64])
{
        *dialect = strncmp(path, "/api/", 5) == 0         ? DIALECT_OLLAMA :
                   strncmp(path, "/v1/messages", 12) == 0 ? DIALECT_ANTHROPIC :
                                                            DIALECT_OPENAI;
        allow[0] = '\0';
        for (size_t i = 0; i < TDM_ARRAY_SIZE(routes); i++) {
                const struct route *r = &routes[i];

                if (!matches(r, path, arg))
                        continue;
                if (strcmp(method, r->method) == 0) {
                        *dialect = r->dialect;
                        return r;
                }
                snprintf(allow, 64, "%s%s, OPTIONS", r->method, strcmp(r->method, "GET") == 0 ? ", HEAD" : "");
        }
        return NULL;
}
