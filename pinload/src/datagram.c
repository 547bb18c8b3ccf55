/*
 * Two sockets on the loopback interface, one of which is never read. See datagram.h.
 *
 * The receiver's buffer is as small as the kernel allows, one or two datagrams: from then
 * on each is dropped on arrival, and all cost the same. A closed port would not do: its
 * ICMP answers are rate-limited and come back as errors, so that costs change with the rate.
 */
#include "datagram.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool join_ends(struct datagrams *datagrams)
{
    const int least = 1; /* the kernel raises it to its least */
    struct sockaddr_in place = {
        .sin_family = AF_INET,
        .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
    };
    socklen_t size = sizeof place;
    return setsockopt(datagrams->nowhere, SOL_SOCKET, SO_RCVBUF, &least, sizeof least) == 0 &&
           bind(datagrams->nowhere, (struct sockaddr *)&place, sizeof place) == 0 &&
           getsockname(datagrams->nowhere, (struct sockaddr *)&place, &size) == 0 &&
           connect(datagrams->sender, (struct sockaddr *)&place, size) == 0;
}

int datagrams_open(struct datagrams *datagrams)
{
    memset(datagrams->bytes, 0x55, sizeof datagrams->bytes);
    datagrams->nowhere = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    datagrams->sender = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (datagrams->nowhere >= 0 && datagrams->sender >= 0 && join_ends(datagrams))
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
    if (datagrams->nowhere >= 0)
        close(datagrams->nowhere);
}
