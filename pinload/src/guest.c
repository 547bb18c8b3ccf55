/*
 * Process 1 of a measurement guest. See guest.h.
 *
 * /pinload/modules.list holds one module per line, in the order of insertion:
 *
 *   virtio_pci.ko
 *   /lib/modules/virtio_console.ko.xz  option=1
 *
 * Relative names are below /pinload. Compressed modules are left to the kernel
 * to unpack (since 5.17). A module that is already there is no failure.
 */
#include "guest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "json.h"

/* linux/module.h of 5.17; older headers lack it. */
#define COMPRESSED_FILE 4

static void mount_one(const char *type, const char *place)
{
    if (mkdir(place, 0755) != 0 && errno != EEXIST)
        complain_errno("cannot make %s", place);
    if (mount(type, place, type, MS_NOSUID, NULL) != 0 && errno != EBUSY)
        complain_errno("cannot mount %s on %s", type, place);
}

/* The kernel starts init without standard files when the initramfs has no /dev/console. */
static void open_standard_files(void)
{
    int file;
    do {
        file = open("/dev/console", O_RDWR | O_NOCTTY);
        if (file < 0)
            file = open("/dev/null", O_RDWR);
    } while (file >= 0 && file <= 2);
    if (file > 2)
        close(file);
}

void guest_mount(void)
{
    mount_one("devtmpfs", "/dev");
    open_standard_files();
    mount_one("proc", "/proc");
    mount_one("sysfs", "/sys");
    mount_one("tmpfs", "/tmp");
    mount_one("tmpfs", "/run");
    mount_one("tmpfs", "/dev/shm");
    setenv("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", 1);
    setenv("HOME", "/", 1);
    setenv("LC_ALL", "C", 1);
}

void guest_raise_loopback(void)
{
    struct ifreq loopback = {.ifr_name = "lo"};
    const int file = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (file < 0)
        return;
    bool good = ioctl(file, SIOCGIFFLAGS, &loopback) == 0;
    if (good) {
        loopback.ifr_flags |= IFF_UP;
        good = ioctl(file, SIOCSIFFLAGS, &loopback) == 0;
    }
    if (!good && errno != ENODEV)
        complain_errno("cannot bring the loopback interface up");
    close(file);
}

static bool is_compressed(const char *path)
{
    const char *end = strrchr(path, '.');
    return end && (!strcmp(end, ".xz") || !strcmp(end, ".gz") || !strcmp(end, ".zst"));
}

/* 0 or an errno. */
static int insert(const char *name, const char *options)
{
    char path[4096];
    snprintf(path, sizeof path, "%s%s", *name == '/' ? "" : "/pinload/", name);
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno;
    const long answer = syscall(SYS_finit_module, file, options,
                                is_compressed(path) ? COMPRESSED_FILE : 0);
    const int error = answer == 0 || errno == EEXIST ? 0 : errno;
    close(file);
    return error;
}

static void insert_line(char *line, FILE *report, const char **separator)
{
    char *name = line + strspn(line, " \t");
    name[strcspn(name, "\r\n#")] = 0;
    char *options = name + strcspn(name, " \t");
    if (*options)
        *options++ = 0;
    if (!*name)
        return;
    const int error = insert(name, options);
    if (!error)
        return;
    complain("module %s: %s", name, strerror(error));
    fprintf(report, "%s{\"name\":", *separator);
    json_text(report, name);
    fputs(",\"error\":", report);
    json_text(report, strerror(error));
    fputc('}', report);
    *separator = ",";
}

void guest_insert_modules(FILE *report)
{
    char line[4096];
    const char *separator = "";
    FILE *list = fopen("/pinload/modules.list", "re");
    if (!list) {
        if (errno != ENOENT) /* a kernel with everything built in needs no list */
            complain_errno("cannot read /pinload/modules.list");
        return;
    }
    while (fgets(line, sizeof line, list))
        insert_line(line, report, &separator);
    fclose(list);
}

/* False if there is no CPU of that number. */
static bool bring_online(int number)
{
    char path[64];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d", number);
    if (access(path, F_OK) != 0)
        return false;
    strncat(path, "/online", sizeof path - strlen(path) - 1);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        if (errno != ENOENT) /* one that cannot be taken offline has none */
            complain_errno("cannot open %s", path);
        return true;
    }
    char state = '1';
    if (read(file, &state, 1) == 1 && state == '0' && pwrite(file, "1", 1, 0) != 1)
        complain_errno("cannot bring CPU %d online", number);
    close(file);
    return true;
}

void guest_bring_cpus_online(void)
{
    for (int number = 0; bring_online(number); number++)
        ;
}

int guest_page_table_levels(void)
{
#ifdef __x86_64__
    /* Above the 47 bits of four levels the kernel maps only if asked, and only with five. */
    char *const above = (char *)(uintptr_t)(UINT64_C(1) << 48);
    void *const place = mmap(above, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (place == MAP_FAILED)
        return 0;
    munmap(place, 4096);
    return (uintptr_t)place >> 47 ? 5 : 4;
#else
    return 0;
#endif
}

static bool has_name(const char *port)
{
    char path[512], name[128] = "";
    snprintf(path, sizeof path, "/sys/class/virtio-ports/%s/name", port);
    FILE *file = fopen(path, "re");
    if (!file)
        return false;
    const bool read = fgets(name, sizeof name, file) != NULL;
    fclose(file);
    name[strcspn(name, "\n")] = 0;
    return read && !strcmp(name, GUEST_PORT);
}

static int try_port(void)
{
    char path[512] = "";
    DIR *ports = opendir("/sys/class/virtio-ports");
    if (!ports)
        return -1;
    for (struct dirent *entry = readdir(ports); entry; entry = readdir(ports)) {
        if (entry->d_name[0] != '.' && has_name(entry->d_name)) {
            snprintf(path, sizeof path, "/dev/%s", entry->d_name);
            break;
        }
    }
    closedir(ports);
    return *path ? open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC) : -1;
}

int guest_open_port(uint64_t limit_ns)
{
    const uint64_t end = monotonic_ns() + limit_ns;
    for (;;) {
        const int port = try_port();
        const uint64_t now = monotonic_ns();
        if (port >= 0 || now >= end)
            return port;
        sleep_until(now + 20 * NS_PER_MS);
    }
}

_Noreturn void guest_power_off(void)
{
    sync();
    reboot(RB_POWER_OFF);
    complain_errno("cannot power off, resetting");
    reboot(RB_AUTOBOOT);
    for (;;) /* process 1 must not return */
        pause();
}
