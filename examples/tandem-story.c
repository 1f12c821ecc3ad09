/* A small GTK 4 app that streams a story over D-Bus: write a beginning, press Enter, read on; Stop cancels. Everything
 * is asynchronous, so the window never waits; text arrives through a pipe and may end in the middle of a character. Its
 * picture: examples/tandem-story.png.
 *
 *     cc tandem-story.c $(pkg-config --cflags --libs gtk4 gio-unix-2.0) -o tandem-story */
#include <gio/gunixfdlist.h>
#include <gio/gunixinputstream.h>
#include <gtk/gtk.h>

#define NAME "dev.tandem.Tandem1"
#define PATH "/dev/tandem/Tandem1"

struct app {
        GDBusConnection *bus;
        GtkWidget *entry, *button, *status;
        GtkTextBuffer *text;
        char *job;    /* NULL: none runs */
        char rest[8]; /* of a character whose end has not come yet */
        gsize n_rest;
};

/* What a read of the pipe needs; the app lives as long as the program. */
struct stream {
        struct app *app;
        GInputStream *pipe;
        char bytes[4096 + 8];
};

static void show_status(struct app *app, const char *text)
{
        gtk_label_set_text(GTK_LABEL(app->status), text);
}

static void set_running(struct app *app, gboolean running)
{
        gtk_button_set_label(GTK_BUTTON(app->button), running ? "Stop" : "Tell");
        gtk_widget_set_sensitive(app->entry, !running);
}

static void append(struct app *app, const char *text, gssize size)
{
        GtkTextIter end;

        gtk_text_buffer_get_end_iter(app->text, &end);
        gtk_text_buffer_insert(app->text, &end, text, (int)size);
}

static void on_result(GObject *source, GAsyncResult *result, gpointer userdata)
{
        GVariant *value = g_dbus_connection_call_finish(G_DBUS_CONNECTION(source), result, NULL), *inner;
        struct app *app = userdata;

        if (!value) {
                show_status(app, "The service has gone");
                return;
        }
        g_variant_get(value, "(v)", &inner);
        show_status(app, g_variant_get_string(inner, NULL));
        g_variant_unref(inner);
        g_variant_unref(value);
}

static void ended(struct stream *s)
{
        struct app *app = s->app;

        g_dbus_connection_call(app->bus, NAME, app->job, "org.freedesktop.DBus.Properties", "Get",
                               g_variant_new("(ss)", NAME ".Job", "Result"), G_VARIANT_TYPE("(v)"),
                               G_DBUS_CALL_FLAGS_NONE, -1, NULL, on_result, app);
        g_clear_pointer(&app->job, g_free);
        app->n_rest = 0;
        set_running(app, FALSE);
        g_object_unref(s->pipe);
        g_free(s);
}

static void on_read(GObject *source, GAsyncResult *result, gpointer userdata)
{
        gssize n = g_input_stream_read_finish(G_INPUT_STREAM(source), result, NULL);
        struct stream *s = userdata;
        struct app *app = s->app;
        const char *end;
        gsize size;

        if (n <= 0) {
                ended(s);
                return;
        }
        size = app->n_rest + (gsize)n;
        g_utf8_validate(s->bytes, (gssize)size, &end);
        append(app, s->bytes, end - s->bytes);
        app->n_rest = MIN((gsize)(s->bytes + size - end), sizeof(app->rest));
        memcpy(app->rest, end, app->n_rest);
        memcpy(s->bytes, app->rest, app->n_rest);
        g_input_stream_read_async(s->pipe, s->bytes + app->n_rest, 4096, G_PRIORITY_DEFAULT, NULL, on_read, s);
}

static void on_generate(GObject *source, GAsyncResult *result, gpointer userdata)
{
        struct app *app = userdata;
        GUnixFDList *fds = NULL;
        GError *error = NULL;
        GVariant *value =
                g_dbus_connection_call_with_unix_fd_list_finish(G_DBUS_CONNECTION(source), &fds, result, &error);
        struct stream *s;
        gint32 handle;
        int fd;

        if (!value) {
                g_dbus_error_strip_remote_error(error);
                show_status(app, error->message);
                g_error_free(error);
                set_running(app, FALSE);
                return;
        }
        g_variant_get(value, "(oh)", &app->job, &handle);
        g_variant_unref(value);
        fd = g_unix_fd_list_get(fds, handle, NULL);
        g_object_unref(fds);
        s = g_new0(struct stream, 1);
        s->app = app;
        s->pipe = g_unix_input_stream_new(fd, TRUE);
        show_status(app, "Telling…");
        g_input_stream_read_async(s->pipe, s->bytes, 4096, G_PRIORITY_DEFAULT, NULL, on_read, s);
}

static void tell_or_stop(struct app *app)
{
        const char *prompt = gtk_editable_get_text(GTK_EDITABLE(app->entry));
        GVariantBuilder options;

        if (app->job) {
                g_dbus_connection_call(app->bus, NAME, app->job, NAME ".Job", "Cancel", NULL, NULL,
                                       G_DBUS_CALL_FLAGS_NONE, -1, NULL, NULL, NULL);
                return;
        }
        gtk_text_buffer_set_text(app->text, prompt, -1);
        g_variant_builder_init(&options, G_VARIANT_TYPE("a{sv}"));
        g_variant_builder_add(&options, "{sv}", "max-tokens", g_variant_new_uint32(300));
        g_variant_builder_add(&options, "{sv}", "temperature", g_variant_new_double(0.8));
        g_dbus_connection_call_with_unix_fd_list(app->bus, NAME, PATH, NAME ".Manager", "Generate",
                                                 g_variant_new("(sa{sv})", prompt, &options), G_VARIANT_TYPE("(oh)"),
                                                 G_DBUS_CALL_FLAGS_NONE, -1, NULL, NULL, on_generate, app);
        set_running(app, TRUE);
        show_status(app, "Waiting…");
}

static void on_activate(GtkApplication *application, gpointer userdata)
{
        GtkWidget *window = gtk_application_window_new(application), *box, *bar, *scroll, *view;
        struct app *app = userdata;

        app->bus = g_application_get_dbus_connection(G_APPLICATION(application));
        gtk_window_set_title(GTK_WINDOW(window), "Tandem Story");
        gtk_window_set_default_size(GTK_WINDOW(window), 640, 420);
        box = gtk_box_new(GTK_ORIENTATION_VERTICAL, 8);
        bar = gtk_box_new(GTK_ORIENTATION_HORIZONTAL, 8);
        gtk_widget_set_margin_start(box, 12);
        gtk_widget_set_margin_end(box, 12);
        gtk_widget_set_margin_top(box, 12);
        gtk_widget_set_margin_bottom(box, 12);

        app->entry = gtk_entry_new();
        gtk_editable_set_text(GTK_EDITABLE(app->entry), "Once upon a time");
        gtk_widget_set_hexpand(app->entry, TRUE);
        app->button = gtk_button_new_with_label("Tell");
        gtk_widget_add_css_class(app->button, "suggested-action");
        app->status = gtk_label_new("");
        gtk_label_set_xalign(GTK_LABEL(app->status), 0);
        gtk_label_set_ellipsize(GTK_LABEL(app->status), PANGO_ELLIPSIZE_END);
        view = gtk_text_view_new();
        gtk_text_view_set_wrap_mode(GTK_TEXT_VIEW(view), GTK_WRAP_WORD_CHAR);
        gtk_text_view_set_editable(GTK_TEXT_VIEW(view), FALSE);
        app->text = gtk_text_view_get_buffer(GTK_TEXT_VIEW(view));
        scroll = gtk_scrolled_window_new();
        gtk_scrolled_window_set_child(GTK_SCROLLED_WINDOW(scroll), view);
        gtk_widget_set_vexpand(scroll, TRUE);

        gtk_box_append(GTK_BOX(bar), app->entry);
        gtk_box_append(GTK_BOX(bar), app->button);
        gtk_box_append(GTK_BOX(box), bar);
        gtk_box_append(GTK_BOX(box), scroll);
        gtk_box_append(GTK_BOX(box), app->status);
        gtk_window_set_child(GTK_WINDOW(window), box);
        g_signal_connect_swapped(app->entry, "activate", G_CALLBACK(tell_or_stop), app);
        g_signal_connect_swapped(app->button, "clicked", G_CALLBACK(tell_or_stop), app);
        gtk_window_present(GTK_WINDOW(window));
}

int main(int argc, char **argv)
{
        GtkApplication *application = gtk_application_new("dev.tandem.Story", G_APPLICATION_DEFAULT_FLAGS);
        struct app app = { 0 };
        int status;

        g_signal_connect(application, "activate", G_CALLBACK(on_activate), &app);
        status = g_application_run(G_APPLICATION(application), argc, argv);
        g_object_unref(application);
        return status;
}
