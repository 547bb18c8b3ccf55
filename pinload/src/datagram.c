/*
 * A socket that sends to an address that no host has, as in the paper. See datagram.h.
 *
 * It is in a network namespace of its own, which has only a loopback interface: a route leads the
 * address there, and the kernel drops each datagram, because it is for no host. Nothing leaves the
 * machine, no route or firewall of the host matters, and all datagrams cost the same. A closed
 * port would not do: its ICMP answers are rate-limited and come back as errors, so that costs
 * change with the rate. A dummy interface is a module, which not every kernel has.
 */
#include "datagram.h"

#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

/* TEST-NET-1 (RFC 5737), which no host has, and the port of discard. */
static struct sockaddr_in nowhere(void)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET,
        .sin_port = htons(9),
        .sin_addr.s_addr = htonl(0xc0000201),
    };
}

/* Without privileges a namespace of the network needs one of users, too. */
static bool leave_network(void)
{
    return unshare(CLONE_NEWNET) == 0 ||
           (errno == EPERM && unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0);
}

static bool raise_loopback(int any)
{
    struct ifreq lo = {.ifr_name = "lo", .ifr_flags = IFF_UP | IFF_RUNNING};
    return ioctl(any, SIOCSIFFLAGS, &lo) == 0;
}

static bool add_route(int any)
{
    char name[] = "lo";
    const struct sockaddr_in place = nowhere();
    const struct sockaddr_in host = {.sin_family = AF_INET, .sin_addr.s_addr = INADDR_NONE};
    struct rtentry route = {.rt_flags = RTF_UP | RTF_HOST, .rt_dev = name};
    memcpy(&route.rt_dst, &place, sizeof place);
    memcpy(&route.rt_genmask, &host, sizeof host);
    return ioctl(any, SIOCADDRT, &route) == 0;
}

int datagrams_open(struct datagrams *datagrams)
{
    const struct sockaddr_in place = nowhere();
    memset(datagrams->bytes, 0x55, sizeof datagrams->bytes);
    datagrams->sender = -1;
    if (!leave_network())
        return errno;
    datagrams->sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (datagrams->sender >= 0 && raise_loopback(datagrams->sender) &&
        add_route(datagrams->sender) &&
        connect(datagrams->sender, (const struct sockaddr *)&place, sizeof place) == 0)
        return 0;
    const int error = errno;
    datagrams_close(datagrams);
    return error;
}

int datagrams_send(struct datagrams *datagrams)
{
    ssize_t sent;
    do
        sent = send(datagrams->sender, datagrams->bytes, sizeof datagrams->bytes, 0);
    while (sent < 0 && errno == EINTR);
    if (sent < 0)
        return errno;
    return sent == DATAGRAM_BYTES ? 0 : EMSGSIZE;
}

void datagrams_close(struct datagrams *datagrams)
{
    if (datagrams->sender >= 0)
        close(datagrams->sender);
}
