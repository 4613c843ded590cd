#!lua
-- The site queue's operations: each call is one of them, whole or not at all, on the server's clock.
-- KEYS[1] is <prefix>:{0}:count; every other key is made from it and so has the same hash tag.
-- ARGV[1] names the operation; crawler/queue/queue.py is the only caller and documents each. An operation that takes
-- a list reads it from ARGV itself, for unpack ends at some 8,000 values.
-- Rule: check everything first, write last, for a script that fails after a write keeps the write.
--
-- A site's record is one field of one of 65,536 small hashes: `state address [progress] [token agent work]`.
-- States: w waiting, s suspended (has a checkpoint), l due later, f finished, a alias of another site, b blocked.
-- A capital letter: the same, and paused by the operator. A held site keeps its state and names token, holder and
-- work behind it. `-` is an address not known yet; a `*` behind the address marks a site that a link led to, and no
-- seed. Progress is done/known/hash, once a lease has ended: how many URLs of the site have had their turn, of how many
-- known ones, and the hash of those that are done; then, where bounds leave out any, /depth120,links31: how many by
-- which reason. It is a text here.
--
-- A session whose time is 0 is being swept: its agent is told GONE, and what it still holds is handed on.
-- A site that stands in wake:site with a time to come is given to nobody before, whatever list names it.
--
-- Sites that are counted as suspended are kept in a set as well: where the plan names none, an idle slot takes of
-- these.
--
-- Paths from outside of a site (seeds, links and redirects of other sites) come as entries: paths, one a line. A first
-- line of digits before them is their depth, and how many redirects led to them: `3 1`; without it both are 0. They
-- wait in paths:SITE, and for a finished site in offered:SITE until a coordinator has compared them with the tables. A
-- site has had its root, unless the set `rootless` names it.
--
-- A site whose address, robots.txt and root page are those of an earlier one is suspected to be that one under a second
-- name. `suspected` has for it: state, the earlier site, the time (ms) from which on pages count, and the times (ms)
-- before which it must not be asked and until which it waits for the comparison. States: open (a coordinator compares
-- the pages of both), same (they are equal, and it is crawled all the same), no (they differ, or the operator says so:
-- never again). `namesakes:SITE` has those that are or were found to be SITE, `suspects` those that are to be looked
-- at, by the time at which that came up. An alias keeps its checkpoint and is given what is offered to it: it may be
-- opened again.
--
-- `owed` has the sites of which the tables lost pages: what they must hold again (crawler.reconcile.agreement).
--
-- `undecided` has the sites of which a coordinator has something to decide, by the time at which that came up: paths
-- were offered, or a finished site is noted in `reopen`. A site that is not finished keeps its note until it is.

local base = string.sub(KEYS[1], 1, -6)
local count = KEYS[1]
local call = redis.call

-- A work that falls due for a paused site is asked for again after this time.
local PAUSED_MS = 60000
-- The due time of a site that is just being packed: in the year 2096.
local HELD_UP_MS = 4e12
-- A site of which nothing is packed yet is looked at again after this time.
local UNPACKED_MS = 500
-- And one whose address had no place for a work beside loading, after this.
local CROWDED_MS = 5000
-- A site that was looked at for such a work while its address was full, after this: many may share one.
local FULL_MS = 1000
-- An agent that misses sites asks again within a part of this; an older note is of one that has stopped asking.
local HUNGRY_MS = 2000
-- Entries of links that may wait for one site. What is refused is reported to the agent that offered it.
local MOST_OFFERED = 10000
-- With more of them one is joined with one of the last, if both have no more characters: many flushes name a site that
-- many link to, each but a few paths. More than a coordinator reads at a time, so that the last are none of those.
local JOINED_BEYOND = 1000
local JOINED_LAST = 8
local ENTRY_CHARACTERS = 4096
-- How long a site waits at most to be compared with the one that it may be an alias of. Where no coordinator is alive,
-- one may be starting.
local COMPARED_MS = 30000
-- Suspected sites that one lease's end has looked at.
local MOST_NAMESAKES = 1000

local names = { w = 'waiting', s = 'suspended', l = 'later', f = 'finished', a = 'alias', b = 'blocked' }

local function now()
  local t = call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

local function bucket(site)
  return base .. 'sites:' .. string.sub(redis.sha1hex(site), 1, 4)
end

-- A site takes two places: its host's, so that one host is never met under two schemes or ports, and its address's.
-- The slashes keep a host that is an address apart from that address.
local function host_of(site)
  return '//' .. (string.match(site, '^%a+://(%[[^%]]*%])') or string.match(site, '^%a+://([^:/]+)') or site)
end

-- A site's record; nil where there is none, and true behind it where somebody else wrote what is none. The script's
-- names are ASCII, and no reply of it may hold another.
local function record_of(site)
  local text = call('HGET', bucket(site), site)
  if not text then return nil end
  local letter, address, linked, rest = string.match(text, '^(%a) ([!-)+-~]+)(%*?) ?(.*)$')
  local state = letter and string.lower(letter)
  if not names[state] or string.find(site, '[^ -~]') then return nil, true end
  local progress, behind, token, agent, work
  if rest ~= '' then
    progress, behind = string.match(rest, '^(%d+/%d+/?%x*/?[%l%d,]*) ?(.*)$')
    behind = behind or rest
    if behind ~= '' then
      token, agent, work = string.match(behind, '^([!-~]+) ([!-~]+) ([!-~]+)$')
      if not token then return nil, true end
    end
  end
  return {
    state = state,
    paused = letter ~= state,
    address = address,
    linked = linked == '*',
    progress = progress,
    token = token,
    agent = agent,
    work = work,
  }
end

local function no_record(site)
  return redis.error_reply('BROKEN ' .. bucket(site) .. ' ' .. site)
end

-- As `record_of`, but what is no record ends the operation by the error BROKEN, with the key and the site.
local function read(site)
  local record, broken = record_of(site)
  if broken then error(no_record(site)) end
  return record
end

local function write(site, record)
  local letter = record.paused and string.upper(record.state) or record.state
  local text = letter .. ' ' .. record.address .. (record.linked and '*' or '')
  if record.progress then text = text .. ' ' .. record.progress end
  if record.agent then
    text = text .. ' ' .. record.token .. ' ' .. record.agent .. ' ' .. record.work
  end
  call('HSET', bucket(site), site, text)
end

-- A record (JSON, or '') into the results stream.
local function tell(report)
  if report ~= '' then call('XADD', base .. 'results', '*', 'v', '1', 'r', report) end
end

-- Tells the tables that a finished site, or an alias, is gone on with, so that a lost queue is known to have held it.
-- Its progress is that from which it goes on; `rest`: what the URLs are that are known and not done: pending or
-- over_budget.
local function tell_opened(site, progress, rest)
  local done, known = string.match(progress or '0/0', '^(%d+)/(%d+)')
  local opened = { kind = 'opened', site = site, published = tonumber(done), known = tonumber(known) }
  opened.opened_at = now()
  opened[rest] = math.max(known - done, 0)
  tell(cjson.encode(opened))
end

local function note_owed(site, owed)
  if owed and owed ~= '' then call('HSET', base .. 'owed', site, owed) end
end

local function add(field, by)
  call('HINCRBY', count, field, by)
end

-- Every site is counted once: held for loading as leased, else as paused, else by its state.
local function class_of(record)
  if record.agent and record.work == 'site' then return 'leased' end
  if record.paused then return 'paused' end
  return names[record.state]
end

-- Changes a record by `change` and keeps the counts right.
local function alter(site, record, change)
  local before = class_of(record)
  change(record)
  local after = class_of(record)
  if before ~= after then
    add(before, -1)
    add(after, 1)
    if before == 'suspended' then call('SREM', base .. 'suspended', site) end
    if after == 'suspended' then call('SADD', base .. 'suspended', site) end
  end
  write(site, record)
end

local function again(work)
  return base .. 'again:' .. work
end

local function eligible(record, work)
  if not record or record.agent or record.paused or record.state == 'b' or record.state == 'a' then return false end
  return work ~= 'site' or record.state == 'w' or record.state == 's'
end

-- One site that waits for this place gets its turn; lease looks again whether there is room. Who has no use for the
-- turn any more is passed over here, where the place is known: in lease the turn would be lost.
local function unpark(place)
  for _ = 1, 1000 do
    local site = call('LPOP', base .. 'park:' .. place)
    if not site then return end
    call('SREM', base .. 'parked', site)
    local record, broken = record_of(site)
    if broken or (eligible(record, 'site') and (record.address == place or host_of(site) == place)) then
      call('LPUSH', again('site'), site)
      return
    end
    if record and record.agent and record.work ~= 'site' then call('RPUSH', again('site'), site) end
  end
end

local function occupy(place)
  call('HINCRBY', base .. 'busy', place, 1)
end

local function vacate(place)
  if call('HINCRBY', base .. 'busy', place, -1) <= 0 then call('HDEL', base .. 'busy', place) end
  unpark(place)
end

local function busy(place)
  return tonumber(call('HGET', base .. 'busy', place) or 0)
end

-- Whether an address takes one more site. Many sites that had to wait for it make it a shared front end.
local function has_room(address, limit, crowd, crowd_limit)
  local taken = busy(address)
  if taken < limit then return true end
  return taken < crowd_limit and tonumber(call('HGET', base .. 'crowd', address) or 0) >= crowd
end

-- Takes a place on an address that has room; where there is still some, the next that waits gets a turn as well.
local function settle(address, limit, crowd, crowd_limit)
  occupy(address)
  if has_room(address, limit, crowd, crowd_limit) then unpark(address) end
end

-- `crowd` keeps how many waited at the same time: a few sites that wait often are no shared front end. Nor does one
-- that is named again while it waits count again, or wait twice.
local function park(site, place)
  if call('SADD', base .. 'parked', site) == 0 then return end
  local waiting = call('RPUSH', base .. 'park:' .. place, site)
  if waiting > tonumber(call('HGET', base .. 'crowd', place) or 0) then
    call('HSET', base .. 'crowd', place, waiting)
  end
end

local function is_unfinished(record)
  return record ~= nil and (record.state == 'w' or record.state == 's' or record.state == 'l')
end

-- The state of a site that is to be gone on with.
local function unfinished(site)
  return call('EXISTS', base .. 'checkpoint:' .. site) == 1 and 's' or 'w'
end

-- A work that is due for a site which another one has in hand is woken when that one leaves, and at `soon` in any case.
local function wait_behind(site, work, soon)
  call('ZADD', base .. 'wake:' .. work, 'GT', soon, site)
  local others = string.gsub(call('HGET', base .. 'behind', site) or '', work .. ' %d+ ?', '')
  call('HSET', base .. 'behind', site, others .. work .. ' ' .. soon .. ' ')
end

-- Who was given another time meanwhile keeps that.
local function wake_those_behind(site)
  local waiting = call('HGET', base .. 'behind', site)
  if not waiting then return end
  call('HDEL', base .. 'behind', site)
  for work, soon in string.gmatch(waiting, '(%S+) (%d+)') do
    local key = base .. 'wake:' .. work
    if tonumber(call('ZSCORE', key, site) or 0) == tonumber(soon) then call('ZADD', key, now(), site) end
  end
end

-- Ends a lease in places and lists; the caller alters the record. What was packed for its work is used up.
local function vacate_all(site, record)
  wake_those_behind(site)
  if record.work ~= 'site' then call('HDEL', base .. 'visit:' .. site, record.work) end
  vacate(host_of(site))
  if record.address ~= '-' then vacate(record.address) end
  call('HDEL', base .. 'held:' .. record.agent, site)
  call('SREM', base .. 'stop:' .. record.agent, site)
  call('SREM', base .. 'suspend:' .. record.agent, site)
  call('SREM', base .. 'given:' .. record.agent, site)
  if record.state == 'b' then call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site) end
end

local function let_go(record)
  record.agent = nil
end

-- A site that has to be walked from its beginning: of what is known of it nothing is done.
local function undo(record)
  if record.progress then record.progress = '0/' .. string.match(record.progress, '/(%d+)') .. '/0' end
end

-- A held site's token, last delivery, pause between requests (ms), time before which it must not be asked (ms), and its
-- progress by that delivery.
local function holding(agent, site)
  local text = call('HGET', base .. 'held:' .. agent, site) or ''
  return string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%d+/%d+/?%x*/?[%l%d,]*)$')
end

-- A dead agent's site goes back to the front, since somebody was in the middle of it; but when that one asked it last
-- is not known, so its pause begins now.
local function hand_back(site, record, time)
  local work = record.work
  local _, _, delay, rests_until, progress = holding(record.agent, site)
  local due = math.max(time + (delay or 0), tonumber(rests_until or 0))
  vacate_all(site, record)
  alter(site, record, function(r)
    let_go(r)
    if work == 'site' and progress and string.match(progress, '/(%d+)') ~= '0' then r.progress = progress end
    if work == 'site' and is_unfinished(r) then r.state = unfinished(site) end
  end)
  if due > time and record.state ~= 'b' then call('ZADD', base .. 'wake:site', due, site) end
  if work ~= 'site' then
    call('ZADD', base .. 'wake:' .. work, due, site)
  elseif due <= time and not record.paused and (record.state == 'w' or record.state == 's') then
    call('RPUSH', again('site'), site)
  end
end

-- A site leaves the hand of an agent that is gone. Of one whose record cannot be read the name goes to the front:
-- whoever leases next is to meet it, and not who only clears up.
local function take_from(agent, site, time)
  local record, broken = record_of(site)
  if record and record.agent == agent then
    hand_back(site, record, time)
    return
  end
  call('HDEL', base .. 'held:' .. agent, site)
  if broken then call('RPUSH', again('site'), site) end
end

-- After a silence of half a lease nobody is swept: every session gets one more lease time first. One that is being
-- swept is beyond help: half of its sites may be others' already.
local function forgive_silence(time, lease_ms)
  local last = tonumber(call('GET', base .. 'renewed') or time)
  if time - last > lease_ms / 2 then
    for _, agent in ipairs(call('ZRANGEBYSCORE', base .. 'agents', '(0', '+inf', 'LIMIT', 0, 10000)) do
      call('ZADD', base .. 'agents', time + lease_ms, agent)
    end
    call('SET', base .. 'renewed', time)
  end
end

local function has_session(agent)
  return tonumber(call('ZSCORE', base .. 'agents', agent) or 0) > 0
end

-- Whether the server lacks the last call of `offer` that it answered to this agent (its number): then it has come back
-- as of an earlier time, and whatever the agent said since is lost. The agent drops what it has, for it to be fetched
-- again.
local function is_older(agent, offers)
  if not has_session(agent) then return false end
  return tonumber(call('HGET', base .. 'agent:' .. agent, 'offers') or 0) < tonumber(offers)
end

local function older(agent)
  return redis.error_reply('OLDER ' .. agent)
end

local function sessions()
  return call('ZCOUNT', base .. 'agents', '(0', '+inf')
end

local function gone(agent)
  return redis.error_reply('GONE ' .. agent)
end

-- Takes up to 100 sites from one dead agent, if there is one; its session goes when none is left.
local function sweep(time, lease_ms)
  forgive_silence(time, lease_ms)
  local dead = call('ZRANGEBYSCORE', base .. 'agents', 0, time, 'LIMIT', 0, 1)[1]
  if not dead then return end
  call('ZADD', base .. 'agents', 0, dead)
  call('HDEL', base .. 'hungry', dead)
  for _, site in ipairs(call('HRANDFIELD', base .. 'held:' .. dead, 100)) do
    take_from(dead, site, time)
  end
  if call('HLEN', base .. 'held:' .. dead) == 0 then
    call('ZREM', base .. 'agents', dead)
    for _, kind in ipairs({ 'agent:', 'stop:', 'suspend:', 'given:' }) do call('UNLINK', base .. kind .. dead) end
  end
end

local function wake(work, time)
  local key = base .. 'wake:' .. work
  for _, site in ipairs(call('ZRANGEBYSCORE', key, 0, time, 'LIMIT', 0, 100)) do
    call('ZREM', key, site)
    call('RPUSH', again(work), site)
    if work == 'site' then
      local record = record_of(site)
      if record and record.state == 'l' then
        call('HDEL', base .. 'why', site)
        alter(site, record, function(r) r.state = unfinished(site) end)
      end
    end
  end
end

-- The next name to look at, and whether it stands there for a probe.
local function pop(work, hour)
  local site = call('LPOP', again(work))
  if site or work ~= 'site' then return site end
  site = call('LPOP', base .. 'probe:' .. hour)
  if site then return site, true end
  return call('LPOP', base .. 'hour:' .. hour) or call('LPOP', base .. 'fresh')
end

-- Notes how many sites an agent asked for in vain; how many the others miss just now.
local function note_hunger(agent, missing, time)
  if missing > 0 then
    call('HSET', base .. 'hungry', agent, time .. ' ' .. missing)
  else
    call('HDEL', base .. 'hungry', agent)
  end
  local others = 0
  local notes = call('HGETALL', base .. 'hungry')
  for i = 1, #notes, 2 do
    local at, many = string.match(notes[i + 1], '^(%d+) (%d+)$')
    if notes[i] ~= agent and time - at <= HUNGRY_MS then others = others + many end
  end
  return others
end

local function is_root(paths)
  return paths == '/' or string.find(paths, '^%d+ %d+\n/$') ~= nil
end

local function names_root(paths)
  return string.find('\n' .. paths .. '\n', '\n/\n', 1, true) ~= nil
end

-- How the paths of an entry were found.
local function way_of(entry)
  return string.match(entry, '^%d+ %d+\n') or ''
end

-- Joins an entry with one of the last of a long list; false: it is one more. Not where an agent has read these already.
local function join(key, paths)
  if call('LLEN', key) < JOINED_BEYOND then return false end
  local way = way_of(paths)
  for place = -1, -JOINED_LAST, -1 do
    local entry = call('LINDEX', key, place)
    if #entry + #paths < ENTRY_CHARACTERS and way_of(entry) == way then
      call('LSET', key, place, entry .. '\n' .. string.sub(paths, #way + 1))
      return true
    end
  end
  return false
end

-- An entry for a site that is not finished. Without a list a site begins with its root, so the first list must name it
-- as well, unless a checkpoint has it or the site begins only now (`begins`). Its holder hears of it with its next
-- renewal.
local function give(site, record, paths, begins)
  local key = base .. 'paths:' .. site
  local is_read = record.agent and record.work == 'site'
  if is_read then call('SADD', base .. 'given:' .. record.agent, site) end
  if not is_read and join(key, paths) then return end
  if call('RPUSHX', key, paths) > 0 then return end
  if not begins and not names_root(paths) and call('EXISTS', base .. 'checkpoint:' .. site) == 0 then
    call('RPUSH', key, '/')
  end
  call('RPUSH', key, paths)
end

-- What a walk begins with; without paths that is the root.
local function give_first(site, record, paths)
  if paths == '' then return end
  if not names_root(paths) then call('SADD', base .. 'rootless', site) end
  give(site, record, paths, true)
end

local function begin(site, paths, linked)
  write(site, { state = 'w', address = '-', linked = linked })
  call('RPUSH', base .. 'fresh', site)
  add('waiting', 1)
  add('added', 1)
  give_first(site, {}, paths)
end

-- A coordinator decides of this site once all is stored that was published before now.
local function await_decision(site)
  call('ZADD', base .. 'undecided', 'GT', now(), site)
end

-- Pages of the site are to be loaded again, once it is finished.
local function note_reopening(site, record)
  call('HINCRBY', base .. 'reopen', site, 1)
  if record and record.state == 'f' then await_decision(site) end
end

-- An alias's paths are its original's; it keeps them, for it may be opened again. The site that they go to, and its
-- record.
local function pass_on(site, record, paths, most)
  local first = call('HGET', base .. 'why', site)
  if most == 0 or call('LLEN', base .. 'paths:' .. site) < most then give(site, record, paths, false) end
  return first, first and read(first)
end

-- An entry for a site that is known, whatever its state: 0 taken (or it has its root already), -2 it is blocked, or
-- stands for no site that is known (as long as that is so nothing of it is loaded), -3 too many wait (only where `most`
-- > 0).
local function receive(site, record, paths, most)
  if paths == '' then paths = '/' end
  if record.state == 'a' and is_root(paths) then return 0 end
  if record.state == 'a' then site, record = pass_on(site, record, paths, most) end
  if not record or record.state == 'b' or record.state == 'a' then return -2 end
  local gives_root = names_root(paths) and call('SISMEMBER', base .. 'rootless', site) == 1
  if not gives_root and is_root(paths) then return 0 end
  local list = base .. (record.state == 'f' and 'offered:' or 'paths:') .. site
  if most > 0 and call('LLEN', list) >= most then return -3 end
  if gives_root then call('SREM', base .. 'rootless', site) end
  if record.state == 'f' then
    if not join(list, paths) then call('RPUSH', list, paths) end
    call('ZADD', base .. 'undecided', 'NX', now(), site)
  else
    give(site, record, paths, false)
  end
  return 0
end

-- The first entries of those that were offered to a site go to its frontier; `taken` of them.
local function hand_over(site, record, taken)
  for _ = 1, taken do
    local paths = call('LPOP', base .. 'offered:' .. site)
    if not paths then break end
    give(site, record, paths, false)
  end
end

-- Nothing of the site is loaded under its name; what was offered to an alias while it was crawled is its original's.
local function clear_offered(site, record)
  local key = base .. 'offered:' .. site
  for _, paths in ipairs(record and record.state == 'a' and call('LRANGE', key, 0, -1) or {}) do
    receive(site, record, paths, 0)
  end
  call('UNLINK', key)
end

local function note_decided(site, record)
  local offered = call('EXISTS', base .. 'offered:' .. site) == 1
  local noted = record and record.state == 'f' and call('HEXISTS', base .. 'reopen', site) == 1
  if not (offered or noted) then call('ZREM', base .. 'undecided', site) end
end

local function stale(site)
  return redis.error_reply('STALE ' .. site)
end

-- The record of a site that this agent holds under this token; nil if it does not.
local function own(site, token, agent)
  local record = read(site)
  if record and record.token == token and record.agent == agent then return record end
end

-- A site that is new, or nobody's no more, falls due for what is done with every site (SiteQueue.monitor).
local function enrol(site, time)
  if call('HEXISTS', count, 'every:status') == 1 then call('ZADD', base .. 'wake:status', 'NX', time, site) end
end

-- --- aliases ---

-- What is suspected of a site, or nil.
local function suspicion_of(site)
  local text = call('HGET', base .. 'suspected', site)
  local state, first, since, free, waits = string.match(text or '', '^(%l+) (%S+) (%d+) (%d+) (%d+)$')
  if not state then return nil end
  return { state = state, first = first, since = since, free = free, waits = waits }
end

local function note_suspicion(site, known)
  local text = table.concat({ known.state, known.first, known.since, known.free, known.waits }, ' ')
  call('HSET', base .. 'suspected', site, text)
  call(known.state == 'no' and 'SREM' or 'SADD', base .. 'namesakes:' .. known.first, site)
end

-- A coordinator looks at the site once all is stored that was published before now.
local function await_comparison(site)
  call('ZADD', base .. 'suspects', now(), site)
end

-- It may be leased again: what it waited for has come, or will not.
local function end_wait(site, known)
  if known.waits ~= '0' and tonumber(call('ZSCORE', base .. 'wake:site', site) or 0) == tonumber(known.waits) then
    call('ZADD', base .. 'wake:site', known.free, site)
  end
  known.free, known.waits = '0', '0'
end

local function clear_suspicion(site)
  local known = suspicion_of(site)
  if not known then return end
  end_wait(site, known)
  call('SREM', base .. 'namesakes:' .. known.first, site)
  call('HDEL', base .. 'suspected', site)
  call('ZREM', base .. 'suspects', site)
end

-- An alias is crawled after all, from where it was left out.
local function open_alias(site, record)
  call('HDEL', base .. 'why', site)
  alter(site, record, function(r) r.state = unfinished(site) end)
  tell_opened(site, record.progress, 'pending')
  enrol(site, now())
  if not record.paused then call('RPUSH', again('site'), site) end
end

-- The site is not crawled, or is crawled from its beginning: nothing is another's alias for its sake. `since` (ms),
-- where given: what was suspected of it begins again with pages that are fetched from then on.
local function part_namesakes(site, since)
  for _, name in ipairs(call('SMEMBERS', base .. 'namesakes:' .. site)) do
    local record = record_of(name)
    clear_suspicion(name)
    if record and record.state == 'a' then
      if since then
        call('UNLINK', base .. 'checkpoint:' .. name)
        undo(record)
        note_suspicion(name, { state = 'open', first = site, since = since, free = '0', waits = '0' })
      end
      open_alias(name, record)
    end
  end
end

-- A site that others may be an alias of: it is crawled under its own name.
local function is_crawled(record)
  return record and not record.paused and record.state ~= 'a' and record.state ~= 'b'
end

-- The site that stands for this one, if it is another one and crawled.
local function original(first, site)
  local record = first and record_of(first)
  if record and record.state == 'a' then
    first = call('HGET', base .. 'why', first)
    record = first and record_of(first)
  end
  if first ~= site and is_crawled(record) then return first, record end
end

local function begin_suspicion(site, first)
  local known, theirs = suspicion_of(site), suspicion_of(first)
  if known and known.first == first then return end
  clear_suspicion(site)
  if theirs and theirs.first == site then clear_suspicion(first) end
  note_suspicion(site, { state = 'open', first = first, since = '0', free = '0', waits = '0' })
  await_comparison(site)
end

-- The site's root page is loaded; `marks`, one a line, say what an alias has in common with its original. A site that a
-- link led to is suspected rather than one that was given as a seed.
local function compare_roots(site, record, marks)
  local found
  for mark in string.gmatch(marks, '[^\n]+') do
    local key = base .. 'alias:' .. string.sub(redis.sha1hex(mark), 1, 4)
    local first, other = original(call('HGET', key, mark), site)
    if not first then
      call('HSET', key, mark, site)
    elseif other.linked and not record.linked then
      call('HSET', key, mark, site)
      begin_suspicion(first, site)
      if other.agent and other.work == 'site' then call('SADD', base .. 'suspend:' .. other.agent, first) end
    else
      found = found or first
    end
  end
  if found then begin_suspicion(site, found) end
  local known = suspicion_of(site)
  if known and known.state == 'open' and known.since == '0' and known.first ~= found then clear_suspicion(site) end
end

-- The site that this one may be left out for, if it is to be compared with it.
local function may_be_alias_of(site, record)
  local known = record.linked and suspicion_of(site)
  return known and known.state == 'open' and known.first
end

-- The site is left out for another one: so are those that are left out for it, and the others are compared with that
-- one.
local function turn_namesakes(site, first)
  for _, name in ipairs(call('SMEMBERS', base .. 'namesakes:' .. site)) do
    local known, record = suspicion_of(name), record_of(name)
    call('SREM', base .. 'namesakes:' .. site, name)
    if known and name ~= first then
      known.first = first
      note_suspicion(name, known)
      await_comparison(name)
      if record and record.state == 'a' then call('HSET', base .. 'why', name, first) end
    end
  end
end

-- A lease for loading has ended: what it brought is compared, and who may be an alias waits for that. `due`: the time
-- (ms) before which the site must not be asked.
local function await_comparisons(site, record, how, due)
  for _, name in ipairs(call('SRANDMEMBER', base .. 'namesakes:' .. site, MOST_NAMESAKES)) do
    await_comparison(name)
  end
  local known = suspicion_of(site)
  if not known or known.state == 'no' then return end
  await_comparison(site)
  local goes_on = (how == 'returned' or how == 'suspended') and (record.state == 'w' or record.state == 's')
  if not goes_on or not may_be_alias_of(site, record) then return end
  known.free = string.format('%.0f', tonumber(due) or 0)
  known.waits = string.format('%.0f', math.max(tonumber(due) or 0, now() + COMPARED_MS))
  call('ZADD', base .. 'wake:site', known.waits, site)
  note_suspicion(site, known)
end

-- The operator says that the site is no alias of the one that it was suspected to be.
local function free_of_suspicion(site)
  local known = suspicion_of(site)
  if not known then return end
  end_wait(site, known)
  known.state = 'no'
  note_suspicion(site, known)
  call('ZREM', base .. 'suspects', site)
end

-- A site that is known was given as a seed: it is crawled under its own name, whatever it has in common with others.
local function seed(site, record, report)
  if record.linked then
    record.linked = false
    write(site, record)
    tell(report)
  end
  if record.state == 'a' then
    open_alias(site, record)
  end
end

-- A finished site, or an alias, is walked from its beginning.
local function begin_again(site, record, paths, time)
  call('UNLINK', base .. 'checkpoint:' .. site)
  clear_suspicion(site)
  part_namesakes(site, time)
  alter(site, record, function(r)
    r.state = 'w'
    undo(r)
  end)
  tell_opened(site, record.progress, 'pending')
  call('RPUSH', base .. 'fresh', site)
  give_first(site, record, paths)
end

-- Arguments of an operation that are not its list.
local MOST_ARGUMENTS = 12

local operations = {}

-- agent, lease ms, description (JSON) -> server's time. Opens or renews a session.
function operations.join(agent, lease_ms, description)
  local time = now()
  forgive_silence(time, tonumber(lease_ms))
  call('ZADD', base .. 'agents', time + lease_ms, agent)
  call('HSET', base .. 'agent:' .. agent, 'about', description, 'joined', time)
  call('SET', base .. 'renewed', time)
  return time
end

-- agent, lease ms, pages -> server's time, how many sites the operator wants back, how many the plan wants suspended,
-- the names of both, then those of sites that were given paths; error GONE where the session is no more.
function operations.renew(agent, lease_ms, pages)
  local time = now()
  if not has_session(agent) then return gone(agent) end
  forgive_silence(time, tonumber(lease_ms))
  call('ZADD', base .. 'agents', time + lease_ms, agent)
  call('HSET', base .. 'agent:' .. agent, 'pages', pages)
  call('SET', base .. 'renewed', time)
  local answer = { time, 0, 0 }
  for i, kind in ipairs({ 'stop:', 'suspend:', 'given:' }) do
    local names = call('SMEMBERS', base .. kind .. agent)
    if i < 3 then answer[i + 1] = #names end
    for _, site in ipairs(names) do
      answer[#answer + 1] = site
    end
  end
  -- Where this answer is lost, the holder finds the paths when it ends the site.
  call('UNLINK', base .. 'given:' .. agent)
  return answer
end

-- agent -> nothing. Ends a session; sites it still holds are handed back.
function operations.part(agent)
  local time = now()
  for _, site in ipairs(call('HKEYS', base .. 'held:' .. agent)) do
    take_from(agent, site, time)
  end
  local about = { 'held:', 'agent:', 'stop:', 'suspend:', 'given:' }
  for _, kind in ipairs(about) do
    call('UNLINK', base .. kind .. agent)
  end
  call('ZREM', base .. 'agents', agent)
  call('HDEL', base .. 'hungry', agent)
  return 0
end

-- most sites (0: no limit), again ('1': finished ones are walked again), then per site: name, record (JSON) or '',
-- paths (an entry) or '' for the root -> per site 1 new, 0 known, 2 walked again, -1 refused by the limit, -2 blocked:
-- nothing of it is loaded.
function operations.discover(most, walk_again)
  local answer = {}
  local known = tonumber(call('HGET', count, 'added') or 0)
  local time = now()
  most = tonumber(most)
  for i = 4, #ARGV, 3 do
    local site, record, paths = ARGV[i], ARGV[i + 1], ARGV[i + 2]
    local old = read(site)
    local verdict = 0
    if not old then
      verdict = (most > 0 and known >= most) and -1 or 1
      if verdict == 1 then
        known = known + 1
        begin(site, paths)
        enrol(site, time)
        tell(record)
      end
    elseif (old.state == 'f' or old.state == 'a') and walk_again == '1' then
      verdict = 2
      seed(site, old, record)
      begin_again(site, old, paths, time)
    else
      seed(site, old, record)
      if receive(site, old, paths, 0) == -2 then verdict = -2 end
    end
    answer[#answer + 1] = verdict
  end
  return answer
end

-- most sites (0: no limit), agent or '', the number of its last call of this that was answered (0: none), then per
-- entry: site, record (JSON) of a site that is new or '' (such a site is left out), '1' if a new one begins with its
-- root too, '1' if a seed led there, so that the site counts as given, paths
-- -> per entry 1 new, 0 known, -1 refused by the limit, -2 nothing of the site is loaded, -3 too many wait; then this
-- call's number. Error OLDER where the last call is not known.
function operations.offer(most, agent, offers)
  if is_older(agent, offers) then return older(agent) end
  local answer = {}
  local known = tonumber(call('HGET', count, 'added') or 0)
  local time = now()
  most = tonumber(most)
  for i = 5, #ARGV, 5 do
    local site, record, root, seeded, paths = unpack(ARGV, i, i + 4)
    local old = read(site)
    if old then
      if seeded == '1' then seed(site, old, record) end
      answer[#answer + 1] = receive(site, old, paths, MOST_OFFERED)
    elseif record == '' then
      answer[#answer + 1] = -2
    elseif most > 0 and known >= most then
      answer[#answer + 1] = -1
    else
      known = known + 1
      begin(site, paths, seeded ~= '1')
      local lacks_root = root == '1' and call('SREM', base .. 'rootless', site) == 1
      if lacks_root then call('LPUSH', base .. 'paths:' .. site, '/') end
      enrol(site, time)
      tell(record)
      answer[#answer + 1] = 1
    end
  end
  if has_session(agent) then offers = call('HINCRBY', base .. 'agent:' .. agent, 'offers', 1) end
  answer[#answer + 1] = tonumber(offers)
  return answer
end

local function is_packed(site, work)
  return call('HEXISTS', base .. 'visit:' .. site, work) == 1
end

-- How many sites could be leased for a work: of the first in its list, for who is told uses but a few.
local function at_hand(work, time, packed)
  local many = 0
  for _, site in ipairs(call('LRANGE', again(work), 0, 15)) do
    local due = tonumber(call('ZSCORE', base .. 'wake:site', site) or 0)
    local ready = due <= time and (packed ~= '1' or is_packed(site, work))
    if ready and eligible(record_of(site), work) then many = many + 1 end
  end
  return many
end

-- agent, lease ms, work, sites wanted, limit per address, crowd, limit of a crowded address, hour, names looked
-- at at most, '1' if the agent misses what it does not get, '1' if only sites are wanted for which something is packed,
-- the number of its last call of `offer` that was answered
-- -> flat list: sites waiting or suspended (of another work: some of those that could be leased now), sites leased,
-- agents, 1 if there may be more names to look at, sites that other agents miss; then per site: name, token, state with
-- + behind it if there is a checkpoint, a budget or paths to read, ? if it is for a probe, ~ if it may be another's
-- alias, address. Hunger is for loading: another work leaves the notes as they are and is told 0. Error GONE without a
-- session, OLDER as `offer`.
function operations.lease(agent, lease_ms, work, wanted, limit, crowd, crowd_limit, hour, look, hungry, packed, offers)
  local time = now()
  lease_ms, wanted, look = tonumber(lease_ms), tonumber(wanted), tonumber(look)
  limit, crowd, crowd_limit = tonumber(limit), tonumber(crowd), tonumber(crowd_limit)
  sweep(time, lease_ms)
  if not has_session(agent) then return gone(agent) end
  if is_older(agent, offers) then return older(agent) end
  wake(work, time)
  local soon = time + math.floor(lease_ms / 3)
  local totals = call('HMGET', count, 'waiting', 'suspended', 'leased')
  local answer = {
    tonumber(totals[1] or 0) + tonumber(totals[2] or 0),
    tonumber(totals[3] or 0),
    sessions(),
    0,
    0,
  }
  local coming = {} -- their holders are about to suspend them: their turn has come too early
  -- One name that was taken from a list; a `spare` one was not, and stays where it waits if it cannot be had now.
  local function look_at(site, probe, spare)
    local record, broken = record_of(site)
    if broken then
      -- Every agent is to meet it: for who does not, the site would be counted and never come.
      if not spare then call('LPUSH', again(work), site) end
      error(no_record(site))
    end
    -- A site that rests may be named in a list as well; its time will bring it back.
    local due = tonumber(call('ZSCORE', base .. 'wake:site', site) or 0)
    if packed == '1' and eligible(record, work) and due <= time and not is_packed(site, work) then
      call('ZADD', base .. 'wake:' .. work, 'NX', time + UNPACKED_MS, site)
    elseif eligible(record, work) and due <= time then
      local host, full = host_of(site), nil
      if busy(host) > 0 then
        full = host
      elseif record.address ~= '-' and not has_room(record.address, limit, crowd, crowd_limit) then
        full = record.address
      end
      if full and spare then
        return
      elseif full and work == 'site' then
        park(site, full)
        if full ~= host and has_room(full, limit, crowd, crowd_limit) then unpark(full) end -- the crowd is complete
        -- It may have been woken to take a place of the other kind; it passes that turn on.
        if full ~= host then unpark(host) elseif record.address ~= '-' then unpark(record.address) end
      elseif full then
        local again_at = full == host and soon or math.min(soon, time + FULL_MS)
        call('ZADD', base .. 'wake:' .. work, 'GT', again_at, site)
      else
        call('SREM', base .. 'parked', site)
        occupy(host)
        if record.address ~= '-' then settle(record.address, limit, crowd, crowd_limit) end
        local state = record.state
        local token = tostring(call('HINCRBY', count, 'token', 1))
        alter(site, record, function(r) r.token, r.agent, r.work = token, agent, work end)
        call('HSET', base .. 'held:' .. agent, site, token .. ' 0 0 0 ' .. (record.progress or '0/0/0'))
        local more = state == 's'
          or call('EXISTS', base .. 'paths:' .. site) == 1
          or call('HEXISTS', base .. 'budget', site) == 1
        local flags = state .. (more and '+' or '') .. (probe and '?' or '')
        if may_be_alias_of(site, record) then flags = flags .. '~' end
        for _, part in ipairs({ site, token, flags, record.address }) do
          answer[#answer + 1] = part
        end
        wanted = wanted - 1
      end
    elseif record and record.agent and record.work ~= work then
      wait_behind(site, work, soon)
    elseif record and record.agent and work ~= 'site' then
      call('ZADD', base .. 'wake:' .. work, 'GT', soon, site)
    elseif record and record.paused and work ~= 'site' then
      call('ZADD', base .. 'wake:' .. work, 'GT', time + PAUSED_MS, site)
    elseif eligible(record, work) and work ~= 'site' then
      call('ZADD', base .. 'wake:' .. work, 'GT', due, site)
    elseif work == 'site' and not spare and record and record.agent
      and call('SISMEMBER', base .. 'suspend:' .. record.agent, site) == 1 then
      coming[#coming + 1] = site
    elseif work == 'site' and not spare then
      -- It may have been woken to take a place; it passes the turn on.
      unpark(host_of(site))
      if record and record.address ~= '-' then unpark(record.address) end
    end
  end
  while wanted > 0 and look > 0 do
    local site, probe = pop(work, hour)
    if not site then break end
    look = look - 1
    look_at(site, probe)
  end
  for i = #coming, 1, -1 do
    call('LPUSHX', base .. 'hour:' .. hour, coming[i])
  end
  if wanted > 0 and look > 0 and work == 'site' then
    for _, site in ipairs(call('SRANDMEMBER', base .. 'suspended', wanted)) do
      look_at(site, false, true)
    end
  end
  if look == 0 then answer[4] = 1 end
  if work ~= 'site' then answer[1] = at_hand(work, time, packed) end
  if work == 'site' then answer[5] = note_hunger(agent, hungry == '1' and look > 0 and wanted or 0, time) end
  return answer
end

-- agent, site, token, address, limit, crowd, limit of a crowded address
-- -> 1 the place is taken, 0 the address is full (leave with `parked`).
function operations.locate(agent, site, token, address, limit, crowd, crowd_limit)
  local record = own(site, token, agent)
  if not record then return stale(site) end
  if record.address == address then return 1 end -- its lease took the place
  limit, crowd, crowd_limit = tonumber(limit), tonumber(crowd), tonumber(crowd_limit)
  local free = has_room(address, limit, crowd, crowd_limit)
  if record.address ~= '-' then vacate(record.address) end
  record.address = free and address or '-'
  if free then settle(address, limit, crowd, crowd_limit) end
  write(site, record)
  return free and 1 or 0
end

-- Records and their links, in turn, from this argument to that one.
local function tell_pages(first, last)
  for i = first, last, 2 do
    if ARGV[i + 1] == '' then
      tell(ARGV[i])
    else
      call('XADD', base .. 'results', '*', 'v', '1', 'r', ARGV[i], 'l', ARGV[i + 1])
    end
  end
end

-- agent, the number of its last call of `offer` that was answered, then per site: name, token, seq, delta (or ''), fold
-- ('1': the delta is the whole checkpoint), root (what the site has in common with an alias of it, one a line, or ''),
-- least pause between requests (ms), time before which the site must not be asked (ms; 0: none), its progress (''
-- leaves what is there), how many entries of paths the delta has taken in, '1' if its records send pages back to
-- loading, number of records, then per record JSON and links
-- -> per site OK, AGAIN (a resend), STALE or GAP, and behind the first two the site that it may be an alias of. Error
-- OLDER as `offer`: no page is published whose links the server has lost.
function operations.publish(agent, offers)
  if is_older(agent, offers) then return older(agent) end
  local answer = {}
  local i = 4
  while i <= #ARGV do
    local site, token, seq, delta, fold, root = unpack(ARGV, i, i + 5)
    local delay, rests_until, progress, taken, sends_back = unpack(ARGV, i + 6, i + 10)
    local n = tonumber(ARGV[i + 11])
    i = i + 12
    local holds, last, _, _, before = holding(agent, site)
    local verdict = 'OK'
    if holds ~= token then
      verdict = 'STALE'
    elseif last == seq then
      verdict = 'AGAIN'
    elseif tonumber(last) + 1 ~= tonumber(seq) then
      verdict = 'GAP'
    else
      tell_pages(i, i + 2 * n - 1)
      if fold == '1' then call('UNLINK', base .. 'checkpoint:' .. site) end
      if delta ~= '' then call('RPUSH', base .. 'checkpoint:' .. site, delta) end
      if sends_back == '1' then note_reopening(site, record_of(site)) end
      if taken ~= '0' then call('LTRIM', base .. 'paths:' .. site, taken, -1) end
      if progress == '' then progress = before end
      call('HSET', base .. 'held:' .. agent, site, table.concat({ token, seq, delay, rests_until, progress }, ' '))
    end
    local record = root ~= '' and (verdict == 'OK' or verdict == 'AGAIN') and record_of(site)
    if record then
      compare_roots(site, record, root)
      local first = may_be_alias_of(site, record)
      if first then verdict = verdict .. ' ' .. first end
    end
    answer[#answer + 1] = verdict
    i = i + 2 * n
  end
  return answer
end

-- A lease for another work than loading has ended; what it did not come to is due at once.
local function leave_work(site, record, how, due, rests)
  local time = now()
  alter(site, record, let_go)
  if due == 0 and how ~= 'finished' then due = how == 'parked' and time + CROWDED_MS or time end
  -- It may have been told a sooner one.
  if due > 0 then call('ZADD', base .. 'wake:' .. record.work, 'LT', due, site) end
  if rests > time and record.state ~= 'b' then call('ZADD', base .. 'wake:site', 'GT', rests, site) end
  return 1
end

-- agent, site, token, how (finished, returned, suspended, parked, later), due (ms, for later and returned; 0: at
-- once), detail (paths seen for finished, the address for parked), reason or '', record
-- (JSON) or '', progress ('': the record keeps what it has), the time before which nobody may ask the site (ms; 0:
-- none), and the number of the lease's last delivery
-- -> 1 done, 0 more paths were given meanwhile (go on), error STALE, also where the last delivery is not known.
function operations.leave(agent, site, token, how, due, detail, reason, report, progress, rests, seq)
  local record = own(site, token, agent)
  if not record then return stale(site) end
  local _, last = holding(agent, site)
  if tonumber(last or 0) < tonumber(seq) then return stale(site) end
  local work = record.work
  if work == 'site' and how == 'finished' and call('LLEN', base .. 'paths:' .. site) > tonumber(detail) then
    return 0
  end
  tell(report)
  vacate_all(site, record)
  if work ~= 'site' then return leave_work(site, record, how, tonumber(due), tonumber(rests)) end
  if how == 'finished' and tonumber(rests) > now() then call('ZADD', base .. 'wake:site', 'GT', rests, site) end
  if how == 'finished' then call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site) end
  alter(site, record, function(r)
    let_go(r)
    if how == 'parked' then r.address = detail end
    if progress ~= '' then r.progress = progress end
    if r.state ~= 'b' then r.state = how == 'finished' and 'f' or how == 'later' and 'l' or unfinished(site) end
  end)
  if record.state == 'b' then return 1 end
  local noted = call('HEXISTS', base .. 'reopen', site) == 1
  if record.state == 'f' and (noted or call('EXISTS', base .. 'offered:' .. site) == 1) then await_decision(site) end
  if how == 'later' then
    call('ZADD', base .. 'wake:site', due, site)
    if reason ~= '' then call('HSET', base .. 'why', site, reason) end
  elseif how == 'returned' and tonumber(due) > 0 then
    call('ZADD', base .. 'wake:site', due, site) -- still suspended: it counts as work that somebody could have
  elseif (how == 'returned' or how == 'parked') and not record.paused then
    -- Parked here it might wait for ever: whoever filled the address may have left since. Lease parks it if not.
    call('RPUSH', again('site'), site)
  elseif how == 'suspended' and record.state == 'w' then
    call('RPUSH', base .. 'fresh', site) -- nothing is known of it: it is as it was found
  end
  await_comparisons(site, record, how, due)
  return 1
end

-- agent, then per site: name, token, when its check is due again (ms), time before which it must not be asked (ms; 0:
-- none), what is kept of its robots.txt or '' (as it was), record (JSON) or '' -> how many leases ended. What was seen
-- is told also where the lease is another's by now; told twice it is stored once.
function operations.hand_in(agent)
  local time, ended = now(), 0
  for i = 3, #ARGV, 6 do
    local site, token, due, rests_until, permit, report = unpack(ARGV, i, i + 5)
    tell(report)
    local record = own(site, token, agent)
    if record then
      ended = ended + 1
      vacate_all(site, record)
      alter(site, record, let_go)
      if permit ~= '' then call('HSET', base .. 'permits', site, permit) end
      if record.state ~= 'b' then
        call('ZADD', base .. 'wake:' .. record.work, due, site)
        if tonumber(rests_until) > time then call('ZADD', base .. 'wake:site', 'GT', rests_until, site) end
      end
    end
  end
  return ended
end

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

local function is_holder(lock, name, number)
  return call('GET', base .. lock) == name .. ' ' .. number
end

-- coordinator, number, then per site: name, how many of its offered entries hold nothing new -> 1. Of a site that is
-- not finished all go to its frontier. Error LOST where the lock is another's.
function operations.decide(coordinator, number)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  for i = 4, #ARGV, 2 do
    local site, taken = ARGV[i], ARGV[i + 1]
    local record = read(site)
    if is_unfinished(record) then
      hand_over(site, record, call('LLEN', base .. 'offered:' .. site))
    elseif record and record.state == 'f' then
      call('LTRIM', base .. 'offered:' .. site, taken, -1)
    else
      clear_offered(site, record)
    end
    note_decided(site, record)
  end
  return 1
end

-- coordinator, number, site, checkpoint ('' where nothing of it is to be loaded), entries of its offered paths that
-- were looked at, how often it had been noted that pages of it are to be loaded again, and what the tables lost of it
-- ('': nothing)
-- -> 1 opened, or there was nothing to open; 0: it is not finished, and will be opened when it is. Error LOST.
function operations.reopen(coordinator, number, site, checkpoint, taken, noted, owed)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record = read(site)
  if is_unfinished(record) then
    hand_over(site, record, tonumber(taken))
    note_decided(site, record)
    return 0
  end
  -- What was noted since the tables were read is not in the checkpoint.
  if call('HGET', base .. 'reopen', site) == noted then call('HDEL', base .. 'reopen', site) end
  if not record or record.state ~= 'f' then
    clear_offered(site, record)
    call('HDEL', base .. 'reopen', site)
  elseif checkpoint == '' then
    call('LTRIM', base .. 'offered:' .. site, taken, -1)
  else
    call('UNLINK', base .. 'checkpoint:' .. site)
    call('RPUSH', base .. 'checkpoint:' .. site, checkpoint)
    alter(site, record, function(r) r.state = 's' end)
    tell_opened(site, record.progress, 'over_budget')
    note_owed(site, owed)
    hand_over(site, record, tonumber(taken))
    if not record.paused then call('RPUSH', again('site'), site) end
  end
  note_decided(site, record)
  return 1
end

-- coordinator, number, site, entries of its offered paths that are left out, its progress as it was read, progress from
-- now on, record (JSON; '': nothing new is left out) -> 1, or 0: it has changed, and is looked at again. Error LOST.
function operations.refuse(coordinator, number, site, taken, before, progress, report)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record = read(site)
  if not record or record.state ~= 'f' or (record.progress or '') ~= before then return 0 end
  if report ~= '' then
    tell(report)
    alter(site, record, function(r) r.progress = progress end)
    if suspicion_of(site) then await_comparison(site) end -- its row forgets by that record whose pages it has
  end
  call('LTRIM', base .. 'offered:' .. site, taken, -1)
  note_decided(site, record)
  return 1
end

-- coordinator, number, then per site: name, the site that it was compared with, what is known by that (open, same, no),
-- the time by which it was looked at -> 1. `no` opens an alias again. Error LOST where the lock is another's.
function operations.judge(coordinator, number)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  for i = 4, #ARGV, 4 do
    local site, first, state, looked = unpack(ARGV, i, i + 3)
    local known, record = suspicion_of(site), read(site)
    if known and record and known.first == first and known.state ~= 'no' then
      end_wait(site, known)
      known.state = state
      note_suspicion(site, known)
      if state == 'no' and record.state == 'a' then open_alias(site, record) end
    end
    local since = tonumber(call('ZSCORE', base .. 'suspects', site) or 0)
    if since <= tonumber(looked) then call('ZREM', base .. 'suspects', site) end
  end
  return 1
end

-- coordinator, number, site, entries … -> 1. Paths that were found under the name of an alias. Error LOST.
function operations.hand_on(coordinator, number, site)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record = read(site)
  for i = 5, #ARGV do
    if record then receive(site, record, ARGV[i], 0) end
  end
  return 1
end

-- coordinator, number, site, the site that it is under a second name, its progress as it was read, progress from now
-- on, record (JSON; '': its holder is to give it back, no more) -> 1 it is left out; 0 it is not: it was given as a
-- seed, is held, has changed, or the other is not crawled. Error LOST.
function operations.leave_out(coordinator, number, site, first, before, progress, report)
  if not is_holder('opener', coordinator, number) then return redis.error_reply('LOST ' .. coordinator) end
  local record, known = read(site), suspicion_of(site)
  if not record or not known or known.first ~= first or not may_be_alias_of(site, record) then return 0 end
  if record.agent and record.work == 'site' and report == '' then
    call('SADD', base .. 'suspend:' .. record.agent, site)
  end
  if record.agent or report == '' then return 0 end
  local other = read(first)
  if not is_unfinished(record) or (record.progress or '') ~= before or not is_crawled(other) then return 0 end
  tell(report)
  -- Some may have come since its frontier was read; what is given twice is fetched once.
  for _, paths in ipairs(call('LRANGE', base .. 'paths:' .. site, 0, -1)) do receive(first, other, paths, 0) end
  end_wait(site, known)
  note_suspicion(site, known)
  call('ZREM', base .. 'suspects', site)
  call('HSET', base .. 'why', site, first)
  turn_namesakes(site, first)
  alter(site, record, function(r) r.state, r.progress = 'a', progress end)
  return 1
end

-- sites … -> 1. Pages of them are to be loaded again; those that are not known are left out.
function operations.plan_reopening()
  for i = 2, #ARGV do
    local record = read(ARGV[i])
    if record then note_reopening(ARGV[i], record) end
  end
  return 1
end

-- In the versions before, `reopen` and `undecided` were sets, and `plan` was the number of the last lock.
local function renew_keys()
  local function members_of_old(name)
    local key = base .. name
    if call('TYPE', key).ok ~= 'set' then return {} end
    local sites = call('SMEMBERS', key)
    call('UNLINK', key)
    return sites
  end
  local offered, noted = members_of_old('undecided'), members_of_old('reopen')
  for _, site in ipairs(offered) do await_decision(site) end
  for _, site in ipairs(noted) do
    local record = record_of(site)
    if record then note_reopening(site, record) end
  end
  local number = call('HGET', count, 'plan')
  if number then
    call('HDEL', count, 'plan')
    call('HINCRBY', count, 'locks', number)
  end
end

-- spider -> the spider whose crawl this is: this one, or the one that came first.
function operations.claim(spider)
  renew_keys()
  call('SET', base .. 'crawl', spider, 'NX')
  return call('GET', base .. 'crawl')
end

-- '1' if the tables' sites are given up -> how many keys went. The last step of emptying a queue, in one with the note
-- that it was emptied on purpose, so that no coordinator counts its sites as lost.
function operations.empty(gives_up)
  local removed = call('UNLINK', count, base .. 'tables')
  if gives_up == '1' then call('HSET', base .. 'tables', 'reset', now()) end
  return removed
end

-- work, '1' if sites count that were due and not packed -> how many sites could be in its hands now or soon: due, or in
-- somebody's.
function operations.due_now(work, unpacked)
  local key = base .. 'wake:' .. work
  local soon = now() + (unpacked == '1' and UNPACKED_MS or 0)
  return call('ZCOUNT', key, 0, soon) + call('ZCOUNT', key, HELD_UP_MS, HELD_UP_MS) + call('LLEN', again(work))
end

local function resumed(site, record)
  call('HDEL', base .. 'why', site)
  if record.agent then call('SREM', base .. 'stop:' .. record.agent, site) end
  if class_of(record) ~= 'leased' and (record.state == 'w' or record.state == 's') then
    call('RPUSH', again('site'), site)
  end
end

-- site, order (pause, resume, block), reason, record (JSON) or '' -> the state's name before, or false for an unknown
-- site. The holder, if there is one, is told with its next renewal. Of a blocked site nothing is left to pause.
function operations.order(site, order, reason, report)
  local record = read(site)
  if not record then return false end
  local before = class_of(record)
  if order == 'pause' and record.state == 'b' then return before end
  tell(report)
  alter(site, record, function(r)
    if order == 'pause' then r.paused = true end
    if order == 'block' then r.state, r.paused = 'b', false end
    if order == 'resume' then
      r.paused = false
      if r.state == 'b' or r.state == 'a' then
        r.state = unfinished(site)
        if r.state == 'w' then undo(r) end
        tell_opened(site, r.progress, 'pending')
        enrol(site, now())
      end
    end
  end)
  if order == 'resume' then free_of_suspicion(site) else part_namesakes(site) end
  if order == 'resume' then
    resumed(site, record)
    return before
  end
  if order == 'block' then
    call('HDEL', base .. 'owed', site)
    call('ZREM', base .. 'wake:site', site)
    clear_suspicion(site)
  end
  -- Of an alias it says which site it stands for.
  if reason ~= '' and record.state ~= 'a' then call('HSET', base .. 'why', site, reason) end
  if record.agent then
    call('SADD', base .. 'stop:' .. record.agent, site)
  elseif order == 'block' then
    call('UNLINK', base .. 'checkpoint:' .. site, base .. 'paths:' .. site)
  end
  return before
end

-- site, pages (0: no limit; '': the crawl's own) from its next lease on, record (JSON) or ''
-- -> 1, or 0 for an unknown site.
function operations.budget(site, pages, report)
  if not read(site) then return 0 end
  tell(report)
  if pages == '' then
    call('HDEL', base .. 'budget', site)
  else
    call('HSET', base .. 'budget', site, pages)
  end
  return 1
end

-- site, record (JSON) or '', then the works whose due times go too -> 1 forgotten, 0 unknown, -1 held by an agent
-- (block it first).
function operations.forget(site, report, ...)
  local record = read(site)
  if not record then return 0 end
  if record.agent then return -1 end
  tell(report)
  clear_suspicion(site)
  part_namesakes(site)
  unpark(host_of(site))
  if record.address ~= '-' then unpark(record.address) end
  add(class_of(record), -1)
  add('added', -1)
  if call('HEXISTS', base .. 'tables', 'added') == 1 then call('HINCRBY', base .. 'tables', 'added', -1) end
  call('SREM', base .. 'suspended', site)
  call('SREM', base .. 'parked', site)
  call('HDEL', bucket(site), site)
  for _, kind in ipairs({ 'checkpoint:', 'paths:', 'visit:', 'offered:' }) do call('UNLINK', base .. kind .. site) end
  call('ZREM', base .. 'undecided', site)
  call('SREM', base .. 'rootless', site)
  call('HDEL', base .. 'reopen', site)
  call('HDEL', base .. 'why', site)
  call('HDEL', base .. 'budget', site)
  call('HDEL', base .. 'permits', site)
  call('HDEL', base .. 'owed', site)
  for _, work in ipairs({ ... }) do call('ZREM', base .. 'wake:' .. work, site) end
  return 1
end

-- per site: name, letter (w, s, f, a, b; a capital one is paused), address, progress (or ''), pages of its own (or ''),
-- why (or ''), '1' if a link led to it, what the tables lost of it (or '') -> how many were not known. For rebuilding a
-- lost queue; what is known stays as it is.
function operations.restore()
  local new = 0
  for i = 2, #ARGV, 8 do
    local site, letter, address, progress, pages, why, linked, owed = unpack(ARGV, i, i + 7)
    if not read(site) then
      new = new + 1
      local state = string.lower(letter)
      local record = { state = state, paused = letter ~= state, address = address, linked = linked == '1' }
      if progress ~= '' then record.progress = progress end
      write(site, record)
      add(class_of(record), 1)
      add('added', 1)
      if letter == 'w' then call('RPUSH', base .. 'fresh', site) end
      if letter == 's' then call('SADD', base .. 'suspended', site) end
      if pages ~= '' then call('HSET', base .. 'budget', site, pages) end
      if why ~= '' then call('HSET', base .. 'why', site, why) end
      note_owed(site, owed)
      if state == 'a' and why ~= '' then begin_suspicion(site, why) end
    end
  end
  return new
end

-- site, progress that its record has ('': none), checkpoint ('': the site begins with its root), progress from now on,
-- what the tables lost of it ('': nothing, or as it was) -> 1 the site continues from that checkpoint, a blocked one
-- stays blocked; 0: its record says something else, or an agent holds it. An agent whose session is over loses it here.
function operations.mend(site, before, checkpoint, progress, owed)
  local record, time = read(site), now()
  if record and record.agent and tonumber(call('ZSCORE', base .. 'agents', record.agent) or 0) <= time then
    take_from(record.agent, site, time)
    record = read(site)
  end
  if not record or record.agent or (record.progress or '') ~= before then return 0 end
  if record.state ~= 'b' then
    call('UNLINK', base .. 'checkpoint:' .. site)
    if checkpoint ~= '' then call('RPUSH', base .. 'checkpoint:' .. site, checkpoint) end
  end
  local was_over = record.state == 'f' or record.state == 'a'
  if record.state == 'a' then call('HDEL', base .. 'why', site) end
  alter(site, record, function(r)
    r.progress = progress ~= '' and progress or nil
    if r.state ~= 'b' and r.state ~= 'l' then r.state = unfinished(site) end
  end)
  if was_over then tell_opened(site, record.progress, 'pending') end
  note_owed(site, owed)
  if not record.paused and (record.state == 'w' or record.state == 's') then call('RPUSH', again('site'), site) end
  return 1
end

-- site, what `owed` has of it -> 1: it is owed no more; 0: it has something else by now.
function operations.settle(site, owed)
  if call('HGET', base .. 'owed', site) ~= owed then return 0 end
  return call('HDEL', base .. 'owed', site)
end

-- site, checkpoint -> 1. It takes the place of whatever checkpoint is there; the site itself follows by `restore`.
function operations.give_checkpoint(site, checkpoint)
  call('UNLINK', base .. 'checkpoint:' .. site)
  call('RPUSH', base .. 'checkpoint:' .. site, checkpoint)
  return 1
end

-- name and value of each field of the recheck account, in turn -> 1. They take the place of whatever is there.
function operations.keep_account()
  call('UNLINK', base .. 'recrawl')
  call('HSET', base .. 'recrawl', unpack(ARGV, 2))
  return 1
end

-- lock (planner, opener), holder, ms -> a fencing number while this holder has the lock, else 0. Asked again it holds
-- on.
function operations.lock(lock, holder, ms)
  local name, number = string.match(call('GET', base .. lock) or '', '^(%S+) (%S+)$')
  if name and name ~= holder then return 0 end
  if not name then number = call('HINCRBY', count, 'locks', 1) end
  call('SET', base .. lock, holder .. ' ' .. number, 'PX', ms)
  return tonumber(number)
end

-- planner, number, list (hour or probe), hour, seconds that it is kept, '1' if it is to be cleared first, names …
-- -> length of the list; error LOST where the lock is another's.
function operations.fill(planner, number, list, hour, seconds, anew)
  if not is_holder('planner', planner, number) then return redis.error_reply('LOST ' .. planner) end
  local key = base .. list .. ':' .. hour
  if anew == '1' then call('UNLINK', key) end
  for i = 8, #ARGV, 1000 do
    call('RPUSH', key, unpack(ARGV, i, math.min(i + 999, #ARGV)))
  end
  call('EXPIRE', key, seconds) -- at every part: a planner may die before the last
  return call('LLEN', key)
end

-- planner, number, hour -> 1. The hour's plan is whole; error LOST where the lock is another's.
function operations.planned(planner, number, hour)
  if not is_holder('planner', planner, number) then return redis.error_reply('LOST ' .. planner) end
  call('HSET', count, 'planned', hour)
  return 1
end

-- planner, number, sites … -> how many of them are held for loading; their holders are told with their next renewal.
-- Error LOST where the lock is another's.
function operations.suspend(planner, number)
  if not is_holder('planner', planner, number) then return redis.error_reply('LOST ' .. planner) end
  local told = 0
  for i = 4, #ARGV do
    local record = read(ARGV[i])
    if record and record.agent and record.work == 'site' then
      call('SADD', base .. 'suspend:' .. record.agent, ARGV[i])
      told = told + 1
    end
  end
  return told
end

-- -> the counts and list lengths that tell whether anything is left; false for a count that is no whole number.
function operations.depth()
  local fields = { 'waiting', 'suspended', 'leased', 'later', 'paused', 'finished', 'alias', 'blocked', 'added' }
  local answer = {}
  for place, value in ipairs(call('HMGET', count, unpack(fields))) do
    answer[place] = tonumber(string.match(value or '0', '^-?%d+$')) or false
  end
  local many = #fields
  answer[many + 1] = call('EXISTS', base .. 'results') == 1 and call('XLEN', base .. 'results') or 0
  answer[many + 2] = sessions()
  answer[many + 3] = call('EXISTS', base .. 'coordinated')
  return answer
end

local operation = operations[ARGV[1]]
if not operation then return redis.error_reply('no such operation: ' .. tostring(ARGV[1])) end
return operation(unpack(ARGV, 2, math.min(#ARGV, MOST_ARGUMENTS + 1)))
