#!/bin/busybox sh
# Init of a host whose /etc and /var/lib are on a disk, as its first boot left them.
PATH=/bin
export PATH
/bin/busybox --install -s /bin
mount -t devtmpfs none /dev
mount -t proc none /proc
mount -t sysfs none /sys
for module in $(cat /pinload/modules.list) $(grep -E '/(crc|mbcache|jbd2|ext4)' /lab/modules/list); do
    insmod $module
done
until [ -b /dev/vda ]; do usleep 20000; done
mkdir -p /disk /var/lib
mount -t ext4 /dev/vda /disk
[ -d /disk/etc ] || cp -a /etc /disk/etc
# Without it each boot would be a first boot, with the settings of one.
[ -e /disk/etc/machine-id ] || echo 0123456789abcdef0123456789abcdef > /disk/etc/machine-id
mkdir -p /disk/lib
mount --bind /disk/etc /etc
mount --bind /disk/lib /var/lib
sync
exec /lib/systemd/systemd
