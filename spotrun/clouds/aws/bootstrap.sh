set -u

# The time-to-live comes first, and counts on the monotonic clock from the boot on: it ends the instance whatever else
# has died, because a shutdown from inside terminates it. An instance that cannot arm it must not live at all.
if ! systemd-run --unit=spotrun-time-to-live --on-boot="${SPOTRUN_TIME_TO_LIVE_S}s" \
    --timer-property=AccuracySec=1s systemctl poweroff; then
    echo "spotrun: the time-to-live cannot be armed: power off"
    systemctl poweroff
    exit 1
fi
echo "spotrun: launch ${SPOTRUN_LAUNCH} of run ${SPOTRUN_RUN_UID} powers off ${SPOTRUN_TIME_TO_LIVE_S} s after its boot"
