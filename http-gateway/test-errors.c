/* What clients are told of errors: no folder of this machine. */
#include "http-gateway/errors.h"

#include <setjmp.h>
#include <cmocka.h>

static void no_folders(void **state)
{
        static const struct {
                int code;
                const char *said, *told;
        } rows[] = {
                { TANDEM_E_NO_DAEMON,
                  "no tandemd answers; tried /run/user/1000/tandem/socket (no such socket), /run/tandem/socket "
                  "(connection refused). Start it with `systemctl start tandemd.socket`, or name its socket",
                  "no tandemd answers; start it on the gateway's machine, where tandem-http's log says more" },
                { TANDEM_E_DENIED,
                  "there is a tandemd that this user may not use; tried /run/tandem/socket (permission denied). One "
                  "for "
                  "yourself: `tandemd --user &`",
                  "there is a tandemd that this user may not use" },
                { TANDEM_E_DAEMON_LOST, "tandemd at /home/ann/own run/socket is gone: it hung up (did it crash?)",
                  "tandemd at socket is gone: it hung up (did it crash?)" },
                { TANDEM_E_UNSUPPORTED,
                  "tandemd at /srv/t/socket (version 0.1) cannot tell those apart for whom this program speaks",
                  "tandemd at socket (version 0.1) cannot tell those apart for whom this program speaks" },
                { TANDEM_E_NO_MODEL, "draft: no model is named nix: no nix.gguf in /home/ann/my models, /var/lib/x",
                  "draft: no model is named nix; GET /v1/models or /api/tags lists those that are" },
                { TANDEM_E_NO_MODEL, "draft: cannot open model nix at /home/ann/m/nix.gguf: Permission denied",
                  "draft: cannot open model nix at nix.gguf: Permission denied" },
                { TANDEM_E_BAD_MODEL, "cannot open model /home/ann/my models/tale.gguf: 3 bytes/row are missing",
                  "cannot open model tale.gguf: 3 bytes/row are missing" },
                { TANDEM_E_BAD_MODEL, "cannot read \"/a/b c\", '/d/e' (/f/g) and /h",
                  "cannot read \"b c\", 'e' (g) and h" },
                { TANDEM_E_NO_WORKER, "no NPU: /dev/accel/accel0 is missing (see /etc/tandem/tandem.conf)",
                  "no NPU: /dev/accel/accel0 is missing (see tandem.conf)" },
                { TANDEM_E_UNSUPPORTED, "cannot open model /home/ann/m/x.gguf: it is no GGUF file",
                  "cannot open model x.gguf: it is no GGUF file" },
                { TANDEM_E_UNSUPPORTED, "cannot use model /srv/m/x.gguf: its architecture is rwkv",
                  "cannot use model x.gguf: its architecture is rwkv" },
                { TANDEM_E_UNSUPPORTED,
                  "model x takes no pictures: its vision tower: cannot open model /srv/m/mmproj-x.gguf: it is empty",
                  "model x takes no pictures: its vision tower: cannot open model mmproj-x.gguf: it is empty" },
                { TANDEM_E_BAD_MODEL, "/", "" },
                { TANDEM_E_NO_MODEL, "draft: no model is named x: no x.gguf in /",
                  "draft: no model is named x; GET /v1/models or /api/tags lists those that are" },
                { TANDEM_E_BAD_REQUEST, "the schema has no type at /properties/size", NULL },
                { TANDEM_E_UNSUPPORTED, "the schema says uniqueItems at /properties/size", NULL },
        };

        for (size_t i = 0; i < TDM_ARRAY_SIZE(rows); i++) {
                struct tandem_error err = { .code = rows[i].code };
                struct failure f = { 0 };

                snprintf(err.message, sizeof(err.message), "%s", rows[i].said);
                failure_from_tandem(&f, &err, "tale");
                assert_string_equal(f.message, rows[i].told ? rows[i].told : rows[i].said);
        }
}

static void missing_models(void **state)
{
        const struct tandem_error err = { .code = TANDEM_E_NO_MODEL,
                                          .message = "no model is named x: no x.gguf in /home/ann" };
        struct failure f = { 0 };

        assert_int_equal(failure_from_tandem(&f, &err, "x"), 404);
        assert_non_null(strstr(f.message, "the model 'x' does not exist"));
        assert_int_equal(failure_from_tandem(&f, &err, ""), 404);
        assert_non_null(strstr(f.message, "no model was named"));
        assert_null(strstr(f.message, "/home"));
}

int main(void)
{
        const struct CMUnitTest tests[] = { cmocka_unit_test(no_folders), cmocka_unit_test(missing_models) };

        return cmocka_run_group_tests(tests, NULL, NULL);
}
