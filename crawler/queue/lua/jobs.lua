-- Due times and packets of the jobs beside the crawl: recheck, revive, status.

-- site, work, due (ms): a work falls due for a site that is known -> 1, or 0 for an unknown site.
function operations.plan_work(site, work, due)
  if not read(site) then return 0 end
  call('ZADD', base .. 'wake:' .. work, due, site)
  return 1
end

-- site, work, packet -> 1 packed; 0 not: the site is not known, or in hand for this very work.
function operations.pack(site, work, packet)
  local record = read(site)
  if not record or (record.agent and record.work == work) then return 0 end
  call('HSET', base .. 'visit:' .. site, work, packet)
  return 1
end

-- site, work -> the time at which it was due (ms), or 0 where it is not; until `release` it is due at no time that
-- comes.
function operations.hold_up(site, work)
  local due = tonumber(call('ZSCORE', base .. 'wake:' .. work, site) or 0)
  if due > 0 and due < HELD_UP_MS then
    call('ZADD', base .. 'wake:' .. work, 'XX', HELD_UP_MS, site)
    return due
  end
  return 0
end

-- site, work, due (ms; 0: nothing of it is) -> 1. What was told meanwhile stays, if it is earlier.
function operations.release(site, work, due)
  local key = base .. 'wake:' .. work
  if tonumber(due) > 0 then
    call('ZADD', key, 'LT', due, site)
  elseif tonumber(call('ZSCORE', key, site) or 0) == HELD_UP_MS then
    call('ZREM', key, site)
  end
  return 1
end

-- work, '1' if sites count that were due and not packed -> how many sites could be in its hands now or soon: due, or in
-- somebody's.
function operations.due_now(work, unpacked)
  local key = base .. 'wake:' .. work
  local soon = now() + (unpacked == '1' and UNPACKED_MS or 0)
  return call('ZCOUNT', key, 0, soon) + call('ZCOUNT', key, HELD_UP_MS, HELD_UP_MS) + call('LLEN', again(work))
end

-- name and value of each field of the recheck account, in turn -> 1. They take the place of whatever is there.
function operations.keep_account()
  call('UNLINK', base .. 'recrawl')
  call('HSET', base .. 'recrawl', unpack(ARGV, 2))
  return 1
end
