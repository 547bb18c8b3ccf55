/bin/busybox --install -s /bin
for module in $(cat /pinload/modules.list); do insmod $module; done
until name=$(grep -l org.pinfold.agent /sys/class/virtio-ports/*/name); do usleep 50000; done
port=$(basename $(dirname $name))
until [ -e /dev/$port ]; do usleep 50000; done
exec /init agent --stdio <> /dev/$port >&0
