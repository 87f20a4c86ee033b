# SPDX-License-Identifier: MIT
"""Words and names that no invented subject may be: common ones, and what a reader found among draws."""

_WORDS = """
able ace act add age ago aid aim air aldi ale alice all amen amend and andes angel ant any apart ape arc are
area aria ark arm armen army art ash ask asset ate atlas atom aunt baby back bad bag bald ball ban band bank
bar bare barn baron base basic bat bath bay bead beam bean bear beast beat bed bee bell belle belt bend bent
bert best bet bid big bill bin bird bit bite blow boa board boat bob body bog bold bona bond bone book bored
born bort both bound bow box boy bra brand brash brass brat break brief bring broad brown bud bug bun bus
bush busy but buy cab cafe cake call calm came camp can cana canal cancan candi candy cane canon cap car
carat card care cargo carl carmen carol cart carve case casein cash casio cast catch cause celia cell cello
cent chain chair chan chant charm chart chase chat chef chest chi chief chile chin china chios chip city
clay clip close club coal coat cob cod code coder cog coin cola cold colin colon come comet con cone cool
cop cope coppice copy coral cord core corn cost costa cot cover crab crane crate crime crop cross crow crown
cry cub cue cup cut dad daisy dam dame damsel dana dance dane dare dark data dawn day dead deal dean dear
debt deck deep deli delta den denis desk devil dew dial did die diet dig dim din dip dish doe dome don dona
done dong donut door dora doris dose dot down drag drama draw dream drill drive drop drum dry dual ducky due
dug dust duty dye each eagle ear earn earth ease easel east easy eat ebb edge egg ego elf elk ell elle elm
else ember end enter epic equal era ere erin error eve even ever evil ewe exam eye face fact fail faint fair
faith fall false fame fan fancy fang far fare farm fast fat fate fear fed fee feel feet few field fiend fig
file fill film fin final fine finer fir fire firm fish fit five fix flag flat flora flour flow fly foal
focus foe fog fold folk fond fondue fong food fool foot for force ford form fort four fox frank free fret
fro from front frost fruit fuel full fun fund fur gain gala game gang gas gate gave gear gel gem gene gently
germ get ghent gift gin girl give glad goad goal god gold gone good gore got gothic grab grain gran grand
grant grape grass grave gray great greek green grew grey grid grin grind grip gross group grow guard guest
gulf gum gun gut guy habit had hail hair half hall ham hand hang harbor hard hare harm hart has hat hate
haul haus have hay head heal hear heart heat held hell hella helm hen her here hero heron hid hide high hill
him hip hire his hit hog hold hole holy home honor hop hope hopper horn host hot hotel hour house how hub
hue hug huge hull hum human hung hunt hurt hut ice icon idea idle idol ill image inch ink inn inner ion iran
ire irene iron isle issue item its ivan ivy jam jar jaw jean jenna jenny jet job jog joy judge juice kale
keen keep keg ken kent kept key kick kid kill kin kind king kit knee knew knife know lab label lace lack lad
lady lag laid lake lamb lamp lance land lane lap large laser last late later latin laugh law lawn lay layer
lead leaf lean learn least led left leg legal lemon lena lend lens less lester let level lid lie life lift
light like lima limb lime line linen link lion lip lira list lit live load loan local lock log logic lois
long look lord lore lorin lose loser loss lost lot loud love loved low lower luca luck lucky lunar lung mad
made magic magnes mail main make male mali man mandolin mane manor many map mar mara marco mare maria marine
mark mars mask mass mast master mat match mate math may mayor meal mean meat medal meet mela melt men menace
menu mere merle mesh met metal mid mile milk mind mine mini minor minster mint miss mist mix mob mode model
mole mom mona money mono monster month mood moon mop moral more morgan most mote moth motor motter mount
mouse mouth move movie much mud mug music must naan nag name nap naval near neat nebula neck need nerve nest
net never new news next nice nicer night nine nip noble nod node noise none nor nora norma north nose not
note novel now nun nurse nut oak oar oat oath obey ocean odd odor off offer oil old olive once one onion
only onto opal open opt oral oran orb orbit order ore organ other our out oven over own owner pace pack pad
page paid pain paint pair pal pale palm pan pander panel paper par paris park part party pass past pat patch
path paw pay pea peak pear pedal peel peer peg pen pension per perch peril pert perusal pet petal phase
phone photo piano pie pier pile pilot pin pine pink pipe pit place plain plan plane plant plate play plot
plug plus pod poem poet point pole polenta polish polo pond ponder pone pony pool poor pop pope porch pork
port porto pose post pot pour power pray press prey price pride prime print prize pro proud pub puck pull
pump pun punch pup pure push put queen quest quick quiet quit race rack radar radio raft rag rage rail rain
raise rake ram ran ranch range rank rap rapid rare rat rate ratio rave raw ray read real rear red reed relay
rely rena rent rest resta rib rice rich rid ride rim rind ring rio riot rip rise risk rival river road roam
roar rob robe robin rock rocky rod roe role roll roman rome rona roof room root rope rosa rose rot route row
royal rub rug ruin rule rum run rural rus rush russet rust rye sack sad safe sag sage said sail saint sake
salad sale salon salt same sand sane sang sap sara sash sat save saw say scale scan scene scent scope score
sea seal seat see seed seek seem seen seine self sell send sense sent sera serve set seven sew shade shake
shape share shark sharp she shed sheer shelf shell shift shine ship shirt shock shoe shop shore short shot
show shut shy sick side sign silk silly silo sin since sing sink sip sir sister sit site six sixth size ski
skill skin sky slate sleep slice slide slim slip slow sly small smart smile smoke snake snow soap soar sock
sofa soft soil solar sold sole solid some son sonar song sony soon sore sort soul sound soup sour south sow
spa space spain span spare spark spell spice spin spine spiral spoon sport spot spray staff stage stain
stamp stand star start state stay steam steel stem step stick stir stone stop store storm story stove straw
strip study style such sugar suit suite sun sunny super sure surge swan swap swarm sway swede sweet swim
sword sync tab table tag tail take tale talk tall talmud tan tank tap tape tar tara task taste taxi tea
teach team tear tell tempo ten tend tenor tent term test than that the thei them theme then they thick thin
thing think third this thor thorn throw tian tic tide tie tiger tile till time tine tinsel tiny tip tire
tired title toast today toe token told toll ton tone tonic tonto too took tool top topic tora torch tore
torn total touch tour tow tower town toy track trade trail train trait tram trap tray treat tree trend trial
tribe trick trim trio trip troop trout truck true trunk trust truth try tub tube tug tulip tuna tune turn
twin two type uncle under union unit unity upon upper urban urge urn usage use used usual vain vale valid
value valve van vary vase vast vat vela venus vera verb vermin very vest vet via vicar video view vila villa
villain vine viola virus visa visit vital vivid vocal voice void volt vote wade wage wagner wagon wait wake
walk wall wand wang want war ward warm warn was wash waste watch water wave wax way weak wear web wed weed
week weigh well wene went were west wet what wheel when while whip white who whole whom why wide wife wig
wild will win wind wine wing wire wise wish wit woe wolf woman won wood wool word wore work world worn worth
wound wrap wry yak yam yard yarn year yell yes yet yield you young zero zip zone zoo zoom
"""

COMMON_WORDS = frozenset(_WORDS.split())
