/* Any bytes as a call over D-Bus: what libdbus takes for a message is read as the daemon reads the arguments of
 * Generate, Chat and Load, and a job is made of it.
 *
 * The first byte of an input chooses: a whole message as it comes over the wire, or only a body, to which a header
 * with the right signature is put, since few random bytes are a message. The daemon's bus face checks the signature in
 * the same way before it reads arguments. */
#include <assert.h>
#include "daemon/faces/dbus/private.h"
#include "tests/fuzz/fuzz-time.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define INPUT_MAX 65536u

enum { WHOLE, GENERATE, CHAT, OPTIONS, N_SHAPES };

static const char *const signatures[N_SHAPES] = { [GENERATE] = "sa{sv}", [CHAT] = "a(ss)a{sv}", [OPTIONS] = "a{sv}" };

static void put_u32(uint8_t *out, uint32_t v)
{
        memcpy(out, &v, sizeof(v));
}

/* A header field: code, signature of its value, value. Fields start at multiples of 8. */
static size_t put_field(uint8_t *out, size_t at, uint8_t code, char type, const char *value)
{
        size_t length = strlen(value);

        at = TDM_ALIGN_UP(at, (size_t)8);
        out[at] = code;
        out[at + 1] = 1;
        out[at + 2] = (uint8_t)type;
        at += 4;
        if (type == 'g')
                out[at++] = (uint8_t)length;
        else {
                put_u32(out + at, (uint32_t)length);
                at += 4;
        }
        memcpy(out + at, value, length + 1);
        return at + length + 1;
}

static DBusMessage *message_of(unsigned shape, const uint8_t *data, size_t size)
{
        static uint8_t bytes[INPUT_MAX + 256];
        size_t at = 16;

        if (shape == WHOLE)
                return dbus_message_demarshal((const char *)data, (int)size, NULL);
        memset(bytes, 0, 256);
        memcpy(bytes, "l\1\0\1", 4); /* little-endian, a method call, no flags, version 1 */
        put_u32(bytes + 4, (uint32_t)size);
        put_u32(bytes + 8, 1);
        at = put_field(bytes, at, 1, 'o', "/");
        at = put_field(bytes, at, 3, 's', "Call");
        at = put_field(bytes, at, 8, 'g', signatures[shape]);
        put_u32(bytes + 12, (uint32_t)(at - 16));
        at = TDM_ALIGN_UP(at, (size_t)8);
        memcpy(bytes + at, data, size);
        return dbus_message_demarshal((const char *)bytes, (int)(at + size), NULL);
}

static void check_job(const struct bus_request *request)
{
        _cleanup_(tdm_job_unrefp) struct tdm_job *job = NULL;
        struct tdm_error err = { 0 };
        int r = tdm_job_new(&job, &request->params, &err);

        assert(r == 0 || (r == err.code && err.message[0]));
        assert((r == 0) == (job != NULL));
}

static void read_call(DBusMessage *m, bool chat)
{
        _cleanup_(bus_request_deinit) struct bus_request request;
        struct tdm_error err = { 0 };
        DBusMessageIter args;
        int r;

        assert(dbus_message_iter_init(m, &args));
        r = bus_read_request(&args, chat, &request, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        if (r == 0)
                check_job(&request);
}

static void read_options(DBusMessage *m)
{
        _cleanup_(closep) int fd = -1;
        struct tdm_error err = { 0 };
        DBusMessageIter args;
        bool wait = false;
        int r;

        assert(dbus_message_iter_init(m, &args));
        r = bus_read_load(&args, &wait, &fd, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
        assert(dbus_message_iter_init(m, &args));
        r = bus_read_no_options(&args, &err);
        assert(r == 0 || (r == err.code && err.message[0]));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        uint64_t start = fuzz_now_ns();
        DBusMessage *m;

        if (size == 0 || size > INPUT_MAX)
                return 0;
        m = message_of(data[0] % N_SHAPES, data + 1, size - 1);
        if (!m)
                return 0;
        if (dbus_message_has_signature(m, signatures[GENERATE]))
                read_call(m, false);
        else if (dbus_message_has_signature(m, signatures[CHAT]))
                read_call(m, true);
        else if (dbus_message_has_signature(m, signatures[OPTIONS]))
                read_options(m);
        dbus_message_unref(m);
        fuzz_check_time(start);
        return 0;
}
