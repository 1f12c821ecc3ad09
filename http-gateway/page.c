/* The chat page at /, with a policy that lets no other script run: each answer has a nonce of its own. */
#include "http-gateway/page.h"

#include <sys/random.h>

#define NONCE_BYTES 16u

static bool is_browser(struct exchange *x)
{
        const char *accept = MHD_lookup_connection_value(x->mhd, MHD_HEADER_KIND, "Accept");

        return accept && strstr(accept, "text/html");
}

static void answer_text(struct exchange *x)
{
        struct buffer text = { 0 };

        buffer_add_text(&text, "Tandem is running\n");
        exchange_answer_text(x, 200, "text/plain; charset=utf-8", &text);
}

void page_root(struct exchange *x)
{
        static const char word[] = "\"NONCE\"";
        char nonce[2 * NONCE_BYTES + 1];
        uint8_t bytes[NONCE_BYTES];
        struct buffer text = { 0 };
        const char *at = page_html;

        if (x->server->config->without_page || !is_browser(x)) {
                answer_text(x);
                return;
        }
        if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
                const struct failure f = { .status = 500, .code = "internal", .message = "no random numbers" };

                exchange_fail(x, &f);
                return;
        }
        for (size_t i = 0; i < NONCE_BYTES; i++)
                snprintf(nonce + 2 * i, 3, "%02x", bytes[i]);
        for (const char *next; (next = strstr(at, word)); at = next + strlen(word)) {
                buffer_add(&text, at, (size_t)(next - at));
                buffer_printf(&text, "\"%s\"", nonce);
        }
        buffer_add_text(&text, at);
        snprintf(x->policy, sizeof(x->policy),
                 "default-src 'none'; script-src 'nonce-%s'; style-src 'nonce-%s'; connect-src 'self'; img-src data:; "
                 "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
                 nonce, nonce);
        exchange_answer_text(x, 200, "text/html; charset=utf-8", &text);
}
